"""Retention and orphans: the objects that may be removed, and those that must stay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast.checkpoints.batcher import CheckpointBatcher
from holdfast.checkpoints.manifest import BatchObject, CheckpointManifest, OperatorCheckpoint
from holdfast.errors import Invalid
from holdfast.testing.conformance.checkpoints.subject import (
    CREATED_MS,
    StoreUnderTest,
    failed,
    manifest,
    pending,
    settled,
)


class CleaningConformance(StoreUnderTest):
    """`prune`, automatic retention and `cleanup_orphans`."""

    def save_many(self, *numbers: int) -> None:
        store = self.open(max_retained=None)
        for number in numbers:
            store.save(manifest(number))

    def flush(self, epoch: int, *, prefix: str = "") -> BatchObject:
        batcher = CheckpointBatcher(self.objects, prefix=prefix)
        batcher.add("k", b"state of epoch %d" % epoch)
        batch = batcher.flush(epoch)
        assert batch is not None
        return batch

    # Retention

    def test_prune_keeps_so_many(self) -> None:
        self.save_many(1, 2, 3, 4, 5)
        assert self.open().prune(2) == 3
        assert self.open().list_ids() == [4, 5]
        assert self.open().prune(2) == 0
        assert self.open().recover_latest_validated().chosen_id == 5

    def test_prune_below_the_limit(self) -> None:
        self.save_many(1, 2)
        assert self.open().prune(3) == 0
        assert self.open().prune(2) == 0
        assert self.open().list_ids() == [1, 2]

    def test_prune_of_nothing(self) -> None:
        assert self.open().prune(1) == 0
        assert self.all_keys() == []

    @pytest.mark.parametrize("wrong", [0, -1, True, "2", 1.5, None])
    def test_prune_of_everything_is_refused(self, wrong: int) -> None:
        self.save_many(1, 2)
        with pytest.raises(Invalid):
            self.open().prune(wrong)
        assert self.open().list_ids() == [1, 2]

    def test_prune_removes_all_that_a_checkpoint_owns(self) -> None:
        store = self.open(max_retained=None)
        for number in (1, 2, 3):
            batch = self.flush(number, prefix="nodes/a/")
            store.save_with_state(manifest(number).with_batches([batch]), [b"state"])
        assert self.open().prune(1) == 2
        assert self.all_keys() == sorted(
            [
                self.manifest_key(3),
                self.sidecar_key(3),
                self.layout.pointer_key,
                "nodes/a/checkpoints/batch-000003.lz4",
            ]
        )
        assert self.open().validate_checkpoint(3).valid

    def test_saving_prunes_by_itself(self) -> None:
        store = self.open(max_retained=2)
        for number in range(1, 6):
            store.save_with_state(manifest(number), [b"state"])
        assert self.open().list_ids() == [4, 5]
        assert self.sidecar_key(3) not in self.all_keys()

    def test_saving_prunes_what_earlier_handles_left(self) -> None:
        self.save_many(1, 2, 3, 4)
        self.open(max_retained=2).save(manifest(5))
        assert self.open().list_ids() == [4, 5]

    @pytest.mark.parametrize("unlimited", [None, 0])
    def test_keeping_all(self, unlimited: int | None) -> None:
        store = self.open(max_retained=unlimited)
        for number in range(1, 8):
            store.save(manifest(number))
        assert self.open().list_ids() == [1, 2, 3, 4, 5, 6, 7]

    @pytest.mark.parametrize("make", [pending, failed], ids=["pending", "failed"])
    def test_unfinished_checkpoints_do_not_push_out_complete_ones(
        self, make: Callable[[int], CheckpointManifest]
    ) -> None:
        store = self.open(max_retained=2)
        store.save(manifest(1))
        store.save(manifest(2))
        for number in range(3, 9):
            store.save(make(number))
        assert self.open().list_ids() == [1, 2, 3, 4, 5, 6, 7, 8]
        assert self.open().prune(1) == 1
        assert self.open().list_ids()[0] == 2

    def test_unfinished_ones_go_when_enough_complete_ones_are_newer(self) -> None:
        store = self.open(max_retained=2)
        store.save(manifest(1))
        store.save(pending(2))
        store.save(manifest(3))
        assert self.open().list_ids() == [1, 2, 3]
        store.save(manifest(4))
        assert self.open().list_ids() == [3, 4]

    def test_a_checkpoint_counts_once_its_sinks_have_committed(self) -> None:
        store = self.open(max_retained=1)
        store.save(manifest(1))
        store.save(pending(2))
        assert self.open().list_ids() == [1, 2]
        store.update_manifest(settled(pending(2)))
        assert self.open().list_ids() == [2]

    def test_damaged_ones_do_not_count(self) -> None:
        self.save_many(1, 2, 3)
        self.damage(self.manifest_key(3))
        assert self.open().prune(1) == 1
        assert self.open().list_ids() == [2, 3]
        assert self.open().recover_latest_validated().chosen_id == 2

    def test_one_whose_state_is_gone_does_not_count(self) -> None:
        store = self.open(max_retained=None)
        for number in (1, 2, 3):
            store.save_with_state(manifest(number), [b"state"])
        self.objects.delete([self.sidecar_key(3)])
        self.overwrite(self.sidecar_key(2), b"stat")
        assert self.open().prune(1) == 0
        assert self.open().recover_latest_validated().chosen_id == 1

    def test_ancestors_of_what_is_kept_stay(self) -> None:
        store = self.open(max_retained=None, full_every=3)
        for number in range(1, 6):  # 1 full, 2 and 3 children, 4 full, 5 a child
            store.save_states(manifest(number), {"same": b"s", "changing": b"%d" % number})
        assert [self.document(n)["parent_id"] for n in range(1, 6)] == [None, 1, 2, None, 4]
        assert self.open().prune(3) == 0
        assert self.open().prune(2) == 3
        assert self.open().list_ids() == [4, 5]
        assert self.open().prune(1) == 0
        assert self.open().load_states(5) == {"same": b"s", "changing": b"5"}

    def test_automatic_retention_keeps_ancestors_too(self) -> None:
        store = self.open(max_retained=1, full_every=4)
        for number in range(1, 10):
            store.save_states(manifest(number), {"same": b"s", "changing": b"%d" % number})
            assert self.open().validate_checkpoint(number).valid
            assert self.open().load_states(number) == {"same": b"s", "changing": b"%d" % number}
        assert self.open().list_ids() == [9]

    def test_damaged_ancestor_keeps_what_may_lie_below_it(self) -> None:
        store = self.open(max_retained=None)
        store.save(manifest(1))
        store.save(manifest(2, is_incremental=True, parent_id=1))
        store.save(manifest(3))
        store.save(manifest(4, is_incremental=True, parent_id=2))
        self.damage(self.manifest_key(2))
        assert self.open().prune(1) == 0  # 3 is complete, but 4 may need the ancestors of 2
        assert self.open().list_ids() == [1, 2, 3, 4]

    def test_object_that_a_kept_checkpoint_needs_too_stays(self) -> None:
        batch = self.flush(1)
        store = self.open(max_retained=None)
        store.save(manifest(1).with_batches([batch]))
        store.save(manifest(2).with_batches([batch]))
        assert self.open().prune(1) == 1
        assert self.open().list_ids() == [2]
        assert self.open().validate_checkpoint(2).valid

    def test_young_ones_stay_and_old_ones_go(self) -> None:
        now = [CREATED_MS / 1000]
        store = self.open(max_retained=2, keep="1m", clock=lambda: now[0])
        for number in range(1, 101):
            now[0] += 2
            store.save_with_state(manifest(number, timestamp_ms=int(now[0] * 1000)), [b"%d" % number])
        ids = self.open().list_ids()
        assert ids[-30:] == list(range(71, 101)), "those of the last minute"
        assert len(ids) < 30 + 12, "older ones go, in groups"
        now[0] += 3600
        store = self.open(max_retained=2, keep="1m", clock=lambda: now[0])
        store.save(manifest(101, timestamp_ms=int(now[0] * 1000)))
        assert self.open().list_ids() == [100, 101], "the number is a floor"
        assert self.open().load_state_data(100) == b"100"
        assert self.sidecar_key(99) not in self.all_keys()

    def test_ancestors_of_young_ones_stay(self) -> None:
        now = [CREATED_MS / 1000]
        store = self.open(max_retained=1, keep=timedelta(hours=2), full_every=4, clock=lambda: now[0])
        for number in range(1, 61):
            now[0] += 60.5
            stamped = manifest(number, timestamp_ms=int(now[0] * 1000))
            store.save_states(stamped, {"same": b"s", "changing": b"%d" % number})
        now[0] += 7000
        store = self.open(max_retained=1, keep=timedelta(hours=2), full_every=4, clock=lambda: now[0])
        store.save_states(manifest(61, timestamp_ms=int(now[0] * 1000)), {"same": b"s"})
        ids = self.open().list_ids()
        assert len(ids) < 60
        for number in ids:
            assert self.open().validate_checkpoint(number).valid

    def test_batches_that_only_an_old_young_one_lists_stay(self) -> None:
        now = [CREATED_MS / 1000]
        shared = self.flush(1)
        store = self.open(max_retained=1, keep="7d", clock=lambda: now[0])
        store.save(manifest(1, timestamp_ms=CREATED_MS).with_batches([shared]))
        now[0] += 3600
        for number in range(2, 30):
            now[0] += 0.01  # all in one second: all but the first go, and the newest
            stamped = manifest(number, timestamp_ms=int(now[0] * 1000))
            store.save(stamped.with_batches([shared]) if number < 20 else stamped)
        ids = self.open().list_ids()
        assert {1, 2} <= set(ids)
        assert len(ids) < 12
        assert self.open().validate_checkpoint(1).valid

    # Orphans

    def test_orphan_goes_and_valid_stays(self) -> None:
        self.open().save_with_state(manifest(1), [b"state"])
        self.open().save_state_data(2, [b"orphan"])
        assert self.open_later().cleanup_orphans() == 1
        assert self.open().load_state_data(2) is None
        assert self.open().load_state_data(1) == b"state"
        assert self.open().validate_checkpoint(1).valid

    def test_nothing_to_clean(self) -> None:
        assert self.open_later().cleanup_orphans() == 0
        self.open().save_with_state(manifest(1), [b"state"])
        before = self.all_keys()
        assert self.open_later().cleanup_orphans() == 0
        assert self.all_keys() == before

    def test_what_another_writer_is_writing_is_left_alone(self) -> None:
        writer = self.open()
        writer.save_state_data(1, [b"in flight"])
        assert self.open().cleanup_orphans() == 0
        assert self.open().prune(1) == 0
        writer.save(manifest(1))
        assert self.open().load_state_data(1) == b"in flight"

    def test_what_this_handle_left_goes_at_once(self) -> None:
        store = self.open()
        store.save_state_data(1, [b"given up"])
        assert store.cleanup_orphans() == 1
        assert self.all_keys() == []

    def test_age_can_be_given(self) -> None:
        self.open().save_state_data(1, [b"orphan"])
        assert self.open_later(100).cleanup_orphans(older_than=200) == 0
        assert self.open_later(100).cleanup_orphans(older_than=50) == 1
        with pytest.raises(Invalid):
            self.open().cleanup_orphans(older_than=-1)

    def test_prune_sweeps_orphans(self) -> None:
        self.save_many(1)
        self.open().save_state_data(2, [b"orphan"])
        assert self.open_later().prune(1) == 0
        assert self.sidecar_key(2) not in self.all_keys()

    def test_saving_sweeps_orphans_now_and_then(self) -> None:
        self.open().save_state_data(7, [b"orphan"])
        store = self.open_later(max_retained=2)
        for number in range(97, 100):
            store.save(manifest(number))
        store.save(pending(100))
        assert self.sidecar_key(7) in self.all_keys(), "no sink waits for a sweep"
        store.update_manifest(settled(pending(100)))
        assert self.sidecar_key(7) not in self.all_keys()
        assert self.open().list_ids() == [99, 100]
        assert all(self.open().validate_checkpoint(number).valid for number in (99, 100))

    def test_saving_sweeps_orphans_where_every_checkpoint_stays(self) -> None:
        self.open().save_state_data(7, [b"orphan"])
        store = self.open_later(max_retained=None)
        for number in range(97, 100):
            store.save(manifest(number))
        store.save(pending(100))
        assert self.sidecar_key(7) in self.all_keys(), "no sink waits for a sweep"
        store.update_manifest(settled(pending(100)))
        assert self.sidecar_key(7) not in self.all_keys()
        assert self.open().list_ids() == [97, 98, 99, 100]

    def test_saving_leaves_alone_what_others_are_writing(self) -> None:
        writer = self.open()
        writer.save_state_data(102, [b"in flight"])
        batch = self.flush(102)
        store = self.open(max_retained=2, orphan_grace=0)
        for number in range(99, 102):
            store.save(manifest(number))
        writer.save(manifest(102).with_batches([batch]))
        assert self.open().validate_checkpoint(102).valid

    def test_plan_tells_and_touches_nothing(self) -> None:
        self.save_many(1, 2, 3)
        self.open().save_state_data(9, [b"orphan"])
        before = self.all_keys()
        plan = self.open_later().plan_prune(1)
        assert [removal.checkpoint_id for removal in plan.checkpoints] == [1, 2]
        assert [orphan.key for orphan in plan.orphans] == [self.sidecar_key(9)]
        assert plan.kept == 1
        assert plan.bytes > 0
        assert self.all_keys() == before

    def test_batches_without_a_checkpoint_are_orphans(self) -> None:
        kept = self.flush(1)
        self.open(max_retained=None).save(manifest(1).with_batches([kept]))
        lost = self.flush(2)
        assert self.open().cleanup_orphans() == 0
        assert self.open_later().cleanup_orphans() == 1
        assert lost.key not in self.all_keys()
        assert kept.key in self.all_keys()

    def test_nothing_of_a_damaged_checkpoint_is_an_orphan(self) -> None:
        batch = self.flush(1)
        operators = {"agg": OperatorCheckpoint.external_slice(0, 5)}
        self.open().save_with_state(manifest(1, operator_states=operators).with_batches([batch]), [b"state"])
        self.damage(self.manifest_key(1))
        assert self.open_later().cleanup_orphans() == 0
        assert {batch.key, self.sidecar_key(1)} <= set(self.all_keys())

    def test_strangers_files_are_never_touched(self) -> None:
        strange = [
            "notes.txt",
            "checkpoints/readme.md",
            "checkpoints/state-1.bin",
            "manifests/x.json",
            "other/state.bin",
        ]
        for key in strange:
            self.overwrite(key, b"not ours")
        self.save_many(1, 2)
        self.open_later().prune(1)
        self.open_later().cleanup_orphans()
        assert set(strange) <= set(self.all_keys())

    def test_leftovers_of_interrupted_writes(self) -> None:
        self.open().save(manifest(1))
        if self.abilities.leftovers:
            planted = self.plant_leftovers()
            assert self.open().cleanup_orphans() == 0
            assert self.open_later().cleanup_orphans() == planted
        assert self.objects.leftovers() == []
        assert self.open().validate_checkpoint(1).valid

    def plant_leftovers(self) -> int:
        """Leave the files that interrupted writes leave; returns their number. Only called with that ability."""
        raise NotImplementedError
