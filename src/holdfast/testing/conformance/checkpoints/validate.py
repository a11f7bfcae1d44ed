"""Validation and the walk back to the newest checkpoint that can be trusted."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoints.batcher import CheckpointBatcher
from holdfast.checkpoints.manifest import OperatorCheckpoint
from holdfast.checkpoints.validate import ValidationResult
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest

EXTERNAL = {"agg": OperatorCheckpoint.external_slice(0, 5)}


class RecoveryConformance(StoreUnderTest):
    """`validate_checkpoint` and `recover_latest_validated`."""

    def invalid(self, checkpoint_id: int, *words: str) -> ValidationResult:
        result = self.open().validate_checkpoint(checkpoint_id)
        assert not result.valid
        assert result.checkpoint_id == checkpoint_id
        assert any(issue.is_fatal for issue in result.issues)
        for word in words:
            assert word in result.reason
        return result

    # Validation

    def test_valid(self) -> None:
        self.open().save(manifest(1))
        result = self.open().validate_checkpoint(1)
        assert (result.checkpoint_id, result.valid, result.issues) == (1, True, [])

    def test_valid_with_state(self) -> None:
        self.open().save_with_state(manifest(1, operator_states=EXTERNAL), [b"state"])
        assert self.open().validate_checkpoint(1).issues == []

    def test_missing(self) -> None:
        self.invalid(1, "manifest not found")

    def test_state_alone_is_no_checkpoint(self) -> None:
        self.open().save_state_data(1, [b"state"])
        self.invalid(1, "manifest not found")

    @pytest.mark.parametrize("fields", [{"epoch": 0}, {"checkpoint_id": 0}], ids=str)
    def test_zero_is_invalid(self, fields: dict[str, Any]) -> None:
        self.plant(1, **fields)
        self.invalid(1)

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"not json", b"[]", b"null", b'{"version": 1}', b"\xff\xfe", b"{}" * 2, b"[" * 100_000],
        ids=["empty", "cut", "words", "list", "null", "incomplete", "not UTF-8", "twice", "deep"],
    )
    def test_corrupt_manifest(self, body: bytes) -> None:
        self.overwrite(self.manifest_key(1), body)
        self.invalid(1, "corrupt manifest", self.manifest_key(1))

    def test_manifest_under_another_id(self) -> None:
        self.open().save(manifest(1))
        self.overwrite(self.manifest_key(2), self.read(self.manifest_key(1)))
        self.invalid(2, "checkpoint 1")
        assert self.open().list() == [(1, 1)]

    def test_checksum_mismatch(self) -> None:
        self.open().save_with_state(manifest(1, operator_states=EXTERNAL), [b"state"])
        self.overwrite(self.sidecar_key(1), b"stale")
        self.invalid(1, "checksum mismatch", hashlib.sha256(b"state").hexdigest(), hashlib.sha256(b"stale").hexdigest())

    def test_shallow_checks_sizes_and_deep_checks_bytes(self) -> None:
        self.open().save_with_state(manifest(1, operator_states=EXTERNAL), [b"state"])
        self.overwrite(self.sidecar_key(1), b"stale")
        assert self.open().validate_checkpoint(1, deep=False).valid
        self.overwrite(self.sidecar_key(1), b"stat")
        assert not self.open().validate_checkpoint(1, deep=False).valid
        self.objects.delete([self.sidecar_key(1)])
        assert not self.open().validate_checkpoint(1, deep=False).valid

    def test_progress_counts_every_byte_of_state(self) -> None:
        self.open().save_with_state(manifest(1), [b"x" * 10_000])
        seen: list[int] = []
        self.open().validate_checkpoint(1, progress=seen.append)
        assert sum(seen) == 10_000

    def test_state_missing(self) -> None:
        self.open().save_with_state(manifest(1, operator_states=EXTERNAL), [b"state"])
        self.objects.delete([self.sidecar_key(1)])
        self.invalid(1, self.sidecar_key(1), "not there")

    def test_batch_objects_are_part_of_the_checkpoint(self) -> None:
        store = self.open()
        batcher = CheckpointBatcher(store, prefix="nodes/a/")
        batcher.add("k", b"v" * 50)
        batch = batcher.flush(1)
        assert batch is not None
        store.save(manifest(1).with_batches([batch]))
        assert self.open().validate_checkpoint(1).valid
        self.damage(batch.key)
        self.invalid(1, batch.key)
        self.objects.delete([batch.key])
        self.invalid(1, batch.key, "not there")

    def test_foreign_checksum_without_state(self) -> None:
        self.plant(1, state_checksum="00" * 32)
        self.invalid(1, "not there")

    def test_foreign_slice_without_checksum_needs_its_bytes(self) -> None:
        operators = {"agg": {"external": True, "external_offset": 0, "external_length": 5}}
        self.plant(1, operator_states=operators)
        self.invalid(1)
        self.plant(1, operator_states=operators, sidecar=b"shor")
        self.invalid(1)
        self.plant(1, operator_states=operators, sidecar=b"state")
        assert self.open().validate_checkpoint(1).valid

    def test_foreign_without_checksum_is_valid(self) -> None:
        self.plant(1)
        assert self.open().validate_checkpoint(1).valid
        found = self.open().load_by_id(1)
        assert found is not None
        assert found.state_checksum is None

    def test_vnode_count_is_compared_with_the_stores_own(self) -> None:
        self.open(vnode_count=8).save(manifest(1, vnode_count=0))
        assert self.open(vnode_count=8).validate_checkpoint(1).issues == []
        result = self.open(vnode_count=16).validate_checkpoint(1)
        assert result.valid
        assert [(issue.is_fatal, "vnode_count=8" in issue.message) for issue in result.issues] == [(False, True)]

    def test_child_is_only_as_good_as_its_ancestors(self) -> None:
        store = self.open(max_retained=None)
        store.save_states(manifest(1), {"a": b"a1", "b": b"b1"})
        store.save_states(manifest(2), {"a": b"a1", "b": b"b2"})
        store.save_states(manifest(3), {"a": b"a1", "b": b"b3"})
        assert self.open().validate_checkpoint(3).valid
        self.damage(self.manifest_key(1))
        for child in (1, 2, 3):
            self.invalid(child)
        assert self.open().recover_latest_validated().chosen_id is None

    def test_child_without_its_parent(self) -> None:
        store = self.open(max_retained=None)
        store.save_states(manifest(1), {"a": b"a1", "b": b"b1"})
        store.save_states(manifest(2), {"a": b"a1", "b": b"b2"})
        self.objects.delete([self.manifest_key(1)])
        self.invalid(2, "parent checkpoint 1")

    # The walk

    def test_walk_in_an_empty_store(self) -> None:
        report = self.open().recover_latest_validated()
        assert (report.chosen_id, report.skipped, report.examined) == (None, [], 0)
        assert report.elapsed >= 0

    def test_walk_stops_at_the_newest_valid_one(self) -> None:
        store = self.open()
        for number in (1, 2, 3):
            store.save(manifest(number))
        report = self.open().recover_latest_validated()
        assert (report.chosen_id, report.skipped, report.examined) == (3, [], 1)

    def test_walk_skips_a_corrupt_one_and_says_why(self) -> None:
        store = self.open()
        store.save(manifest(1))
        store.save(manifest(2))
        self.overwrite(self.manifest_key(2), b"corrupt")
        report = self.open().recover_latest_validated()
        assert (report.chosen_id, report.examined) == (1, 2)
        assert [number for number, _ in report.skipped] == [2]
        assert self.manifest_key(2) in report.skipped[0][1]
        assert report.unreadable == []

    def test_walk_goes_by_every_kind_of_damage(self) -> None:
        store = self.open(max_retained=None)
        store.save(manifest(1))
        for number in range(2, 7):
            store.save_with_state(manifest(number, operator_states=EXTERNAL), [b"state"])
        self.overwrite(self.manifest_key(2), b"\xff\xfe not UTF-8")
        self.overwrite(self.manifest_key(3), b"")
        self.damage(self.manifest_key(4))
        self.damage(self.sidecar_key(5))
        self.objects.delete([self.sidecar_key(6)])
        report = self.open().recover_latest_validated()
        assert (report.chosen_id, report.examined) == (1, 6)
        assert [number for number, _ in report.skipped] == [6, 5, 4, 3, 2]
        assert all(why for _, why in report.skipped)

    def test_walk_when_all_are_corrupt_is_no_fresh_start(self) -> None:
        store = self.open()
        for number in (1, 2):
            store.save(manifest(number))
            self.damage(self.manifest_key(number))
        report = self.open().recover_latest_validated()
        assert (report.chosen_id, report.examined) == (None, 2)
        assert [number for number, _ in report.skipped] == [2, 1]

    def test_walk_ignores_sidecars_without_a_manifest(self) -> None:
        self.open().save(manifest(1))
        self.open().save_state_data(2, [b"orphan"])
        report = self.open().recover_latest_validated()
        assert (report.chosen_id, report.examined) == (1, 1)

    def test_walk_takes_a_pending_checkpoint(self) -> None:
        """Recovery commits its sinks, so it is the right checkpoint to resume from."""
        self.open().save(manifest(1))
        self.open().save(replace(manifest(2), sink_commit_statuses={"out": "Pending"}))
        assert self.open().recover_latest_validated().chosen_id == 2
