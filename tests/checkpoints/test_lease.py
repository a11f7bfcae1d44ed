"""How often a handle that has claimed a store looks whether somebody else has claimed it since."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import CheckpointBatcher, CheckpointStore, open_store
from holdfast.checkpoints.lease import FOLDER
from holdfast.errors import Fenced
from holdfast.testing.conformance.checkpoints.subject import manifest

LONG = 3600.0


def counted(store: CheckpointStore) -> list[str]:
    """Grows with every listing of the lease."""
    seen: list[str] = []
    objects: Any = store.objects
    listing = objects.list

    def listed(prefix: str = "") -> Any:
        if prefix.startswith(FOLDER):
            seen.append(prefix)
        return listing(prefix)

    objects.list = listed
    return seen


def epoch(store: CheckpointStore, number: int) -> None:
    """What a pipeline does with its store in one epoch, with two batch objects and a sidecar."""
    store.check_lease()
    batcher = CheckpointBatcher(store)
    for name in ("a", "b"):
        batcher.add(name, b"state")
        batcher.flush(number)
    pending = manifest(number, sink_commit_statuses={"lake": "Pending"}).with_batches(batcher.flushed(number))
    store.save_with_state(pending, [b"operator"])
    store.check_lease()
    committed = manifest(number, sink_commit_statuses={"lake": "Committed"}).with_batches(batcher.flushed(number))
    store.update_manifest(committed)


def test_a_quick_epoch_looks_twice() -> None:
    store = open_store("memory://")
    store.claim(recheck_after=LONG)
    looks = counted(store)
    for number in range(1, 6):
        del looks[:]
        epoch(store, number)
        assert len(looks) == 2


def test_without_a_pause_every_durable_step_looks() -> None:
    store = open_store("memory://")
    store.claim()
    looks = counted(store)
    epoch(store, 1)
    assert len(looks) == 6  # start, two batches, save, after the decision, update


def test_a_store_that_nobody_claimed_is_never_asked() -> None:
    store = open_store("memory://")
    looks = counted(store)
    epoch(store, 1)
    assert looks == []


def test_one_taken_over_between_two_looks_cannot_take_an_id_that_is_taken() -> None:
    """The look is a courtesy: the creation of the manifest decides."""
    old, new = open_store("memory://taken"), open_store("memory://taken")
    old.claim("old", recheck_after=LONG)
    epoch(old, 1)
    new.claim("new")
    new.save(manifest(2))
    with pytest.raises(Fenced, match="has been saved already"):
        old.save(manifest(2))
    with pytest.raises(Fenced, match="new"):
        old.check_lease()
    for destructive in (lambda: old.prune(1), lambda: old.cleanup_orphans(older_than=0)):
        with pytest.raises(Fenced, match="new"):
            destructive()
