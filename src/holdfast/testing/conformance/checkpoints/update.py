"""Updating: sink statuses move forward, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoints.manifest import CheckpointManifest, OperatorCheckpoint, SinkCommitStatus, SinkStatus
from holdfast.errors import Corrupt, Fenced, Invalid, NotFound
from holdfast.testing.conformance.checkpoints.subject import (
    StoreUnderTest,
    failed,
    manifest,
    pending,
    settled,
    with_everything,
)

PENDING = SinkCommitStatus.pending()
COMMITTED = SinkCommitStatus.committed()
FAILED = SinkCommitStatus.failed("timeout")


class UpdatingConformance(StoreUnderTest):
    """`update_manifest`."""

    def load(self, checkpoint_id: int) -> CheckpointManifest:
        found = self.open().load_by_id(checkpoint_id)
        assert found is not None
        return found

    def test_pending_becomes_committed(self) -> None:
        store = self.open()
        store.save_with_state(pending(1, sink_epochs={"out": 0}), [b"state"])
        store.update_manifest(replace(settled(pending(1)), sink_epochs={"out": 1}))
        found = self.load(1)
        assert found.sink_commit_statuses == {"out": "Committed"}
        assert found.sink_epochs == {"out": 1}
        assert self.open().validate_checkpoint(1).valid
        assert self.open().load_state_data(1) == b"state"

    def test_update_through_another_handle_from_a_loaded_manifest(self) -> None:
        self.open().save(pending(1))
        self.open().update_manifest(settled(self.load(1)))
        assert self.load(1).is_settled

    def test_two_updates_from_one_loaded_manifest(self) -> None:
        self.open().save(manifest(1, sink_commit_statuses={"a": PENDING, "b": PENDING}))
        store, loaded = self.open(), self.load(1)
        store.update_manifest(replace(loaded, sink_commit_statuses={"a": COMMITTED, "b": PENDING}))
        store.update_manifest(replace(loaded, sink_commit_statuses={"a": COMMITTED, "b": COMMITTED}))
        assert self.load(1).is_settled

    def test_repeating_an_update_changes_nothing(self) -> None:
        store = self.open()
        store.save(pending(1))
        store.update_manifest(settled(pending(1)))
        before = self.read(self.manifest_key(1))
        store.update_manifest(settled(pending(1)))
        self.open().update_manifest(settled(pending(1)))
        assert self.read(self.manifest_key(1)) == before

    @pytest.mark.parametrize(
        ("before", "after"),
        [(None, PENDING), (None, COMMITTED), (PENDING, FAILED), (FAILED, COMMITTED), (FAILED, FAILED)],
    )
    def test_forward(self, before: SinkStatus | None, after: SinkStatus) -> None:
        store = self.open()
        store.save(manifest(1, sink_commit_statuses={"out": before} if before else {}))
        store.update_manifest(manifest(1, sink_commit_statuses={"out": after}))
        assert self.load(1).sink_commit_statuses == {"out": after}
        assert self.open().validate_checkpoint(1).valid

    @pytest.mark.parametrize(
        ("before", "after"), [(COMMITTED, PENDING), (COMMITTED, FAILED), (FAILED, PENDING), (COMMITTED, None)]
    )
    def test_backward_is_refused(self, before: SinkStatus, after: SinkStatus | None) -> None:
        store = self.open()
        store.save(manifest(1, sink_commit_statuses={"out": before}))
        body = self.read(self.manifest_key(1))
        with pytest.raises(Invalid) as caught:
            store.update_manifest(manifest(1, sink_commit_statuses={"out": after} if after else {}))
        assert caught.value.unchanged
        assert self.read(self.manifest_key(1)) == body

    def test_sink_epoch_backward_is_refused(self) -> None:
        self.open().save(manifest(1, sink_epochs={"out": 1}))
        for epochs in ({"out": 0}, {}):
            with pytest.raises(Invalid):
                self.open().update_manifest(manifest(1, sink_epochs=epochs))

    @pytest.mark.parametrize(
        "change",
        [
            {"epoch": 3},
            {"watermark": 4},
            {"timestamp_ms": 5},
            {"source_names": ["new"]},
            {"operator_states": {"a": OperatorCheckpoint.inline(b"other")}},
            {"state_checksum": "00"},
            {"parent_id": 1, "is_incremental": True},
        ],
        ids=lambda change: "+".join(change),
    )
    def test_anything_else_is_refused(self, change: dict[str, Any]) -> None:
        self.open().save(with_everything(2))
        body = self.read(self.manifest_key(2))
        with pytest.raises(Invalid) as caught:
            self.open().update_manifest(replace(settled(self.load(2)), **change))
        assert next(iter(change)) in str(caught.value)
        assert self.read(self.manifest_key(2)) == body

    def test_failed_keeps_its_reason_and_is_not_complete(self) -> None:
        self.open().save(failed(1, "no such table: t"))
        found = self.load(1)
        assert found.sink_commit_statuses["out"] == SinkCommitStatus.failed("no such table: t")
        assert self.document(1)["sink_commit_statuses"] == {"out": {"Failed": "no such table: t"}}
        assert not found.is_settled
        assert self.open().validate_checkpoint(1).valid

    def test_update_leaves_the_pointer_alone(self) -> None:
        store = self.open()
        store.save(pending(1))
        store.save(pending(2))
        store.update_manifest(settled(pending(1)))
        assert self.open().latest_pointer() == 2
        self.overwrite(self.layout.pointer_key, b"garbage")
        store.update_manifest(settled(pending(2)))
        assert self.read(self.layout.pointer_key) == b"garbage"

    def test_update_keeps_the_fence(self) -> None:
        store = self.open()
        store.save(pending(1))
        store.update_manifest(settled(pending(1)))
        for rival in (self.open(), store):
            with pytest.raises(Fenced):
                rival.save(pending(1))
        assert self.load(1).is_settled

    def test_update_of_what_was_never_saved(self) -> None:
        with pytest.raises(NotFound):
            self.open().update_manifest(manifest(7))
        with pytest.raises(Invalid):
            self.open().update_manifest(manifest(0, epoch=1))
        assert self.all_keys() == []
        assert self.objects.leftovers() == []

    def test_update_of_what_was_removed(self) -> None:
        store = self.open()
        store.save(pending(1))
        self.objects.delete([self.manifest_key(1)])
        with pytest.raises(NotFound):
            store.update_manifest(settled(pending(1)))
        assert self.open().list_ids() == []

    def test_update_of_a_damaged_manifest_does_not_launder_it(self) -> None:
        self.open().save(pending(1))
        self.damage(self.manifest_key(1))
        body = self.read(self.manifest_key(1))
        with pytest.raises(Corrupt):
            self.open().update_manifest(settled(pending(1)))
        assert self.read(self.manifest_key(1)) == body

    def test_update_of_a_foreign_manifest_keeps_what_it_does_not_know(self) -> None:
        self.plant(1, sink_commit_statuses={"out": "Pending"}, from_the_future={"a": [1]})
        self.open().update_manifest(settled(self.load(1)))
        assert self.document(1)["from_the_future"] == {"a": [1]}
        assert self.load(1).is_settled
        assert self.open().validate_checkpoint(1).valid
