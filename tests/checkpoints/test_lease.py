"""How often a handle that has claimed a store checks its lease, and what a claim says about the driver."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

import holdfast
from holdfast import CheckpointBatcher, CheckpointStore, open_store
from holdfast.checkpoints.lease import FOLDER, LeaseRecord, claim, current
from holdfast.errors import Fenced, Unavailable
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


def test_a_claim_says_who_made_it_and_when() -> None:
    objects = open_store("memory://").objects
    first = claim(objects, owner=None, clock=lambda: 1767225679.5)
    found = current(objects)
    assert found == first.record
    assert (found.owner, found.host, found.process) == (
        f"{socket.gethostname()}:{os.getpid()}",
        socket.gethostname(),
        os.getpid(),
    )
    assert (found.started_ms, found.since) == (1767225679500, "2026-01-01T00:01:19Z")
    assert (found.holdfast, first.predecessor) == (holdfast.__version__, None)


def test_a_driver_that_was_taken_over_hears_by_whom_and_since_when() -> None:
    old, new = open_store("memory://named"), open_store("memory://named", clock=lambda: 1767225679.5)
    old.claim()
    predecessor = new.claim().predecessor
    assert predecessor is not None
    assert predecessor.generation == 1
    with pytest.raises(Fenced) as caught:
        old.check_lease()
    host, process = socket.gethostname(), os.getpid()
    said = f"taken over by {host}:{process}, running since 2026-01-01T00:01:19Z (generation 2, Holdfast 0.1.0); "
    assert said in caught.value.message
    assert "this writer has generation 1" in caught.value.message


def test_a_restart_is_the_same_driver() -> None:
    times = iter((10.0, 20.0, 30.0))
    store = open_store("memory://again", clock=lambda: next(times))
    first, again = store.claim(), store.claim()
    assert (first.record.started_ms, again.record.started_ms, again.record.claimed_ms) == (10_000, 10_000, 20_000)
    assert again.predecessor is not None
    assert again.record.is_same_driver(again.predecessor)
    other = open_store("memory://again", clock=lambda: next(times)).claim()
    assert not other.record.is_same_driver(again.record)  # the same process id, as in containers


def test_a_claim_of_an_earlier_release_is_read() -> None:
    store = open_store("memory://earlier")
    store.objects.create(f"{FOLDER}generation-{1:020}.json", [b'{"generation":1,"owner":"museum:1","claimed_ms":5000}'])
    found = current(store.objects)
    assert found == LeaseRecord(1, "museum:1", 5000)
    assert (found.since, found.is_same_driver(found)) == ("1970-01-01T00:00:05Z", False)
    assert store.claim().predecessor == found


@pytest.mark.parametrize("milliseconds", [0, -5, 10**18])
def test_a_time_that_makes_no_sense_is_not_said(milliseconds: int) -> None:
    assert LeaseRecord(1, "x", milliseconds).since is None


def test_old_claims_that_cannot_be_removed_do_not_fence_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://claims-that-stay")
    objects = store.objects
    for _ in range(12):
        store.claim()

    def refuse(*_: object) -> None:
        raise Unavailable("the service does not delete now")

    monkeypatch.setattr(type(objects), "delete", refuse)
    generation = store.claim().generation
    store.check_lease()
    assert generation == 13


def test_a_damaged_claim_is_taken_over_all_the_same() -> None:
    store = open_store("memory://damaged")
    store.objects.create(f"{FOLDER}generation-{7:020}.json", [b"{"])
    lease = store.claim()
    assert (lease.generation, lease.predecessor) == (8, LeaseRecord(7, "an unknown owner", 0))
