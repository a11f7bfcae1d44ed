"""Around the decision: taken over just before it, or not knowing whether it was made."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from epoch_fakes import Counter, FaultyObjects, World, faulty_store
from epoch_runs import COMMITTED, FIRST, SECOND, newest, run, statuses

from holdfast import CheckpointStore
from holdfast.base.steps import observe
from holdfast.checkpoints.layout import DirectoryLayout, ObjectLayout
from holdfast.checkpoints.operator_state import INLINE_THRESHOLD
from holdfast.errors import Conflict, Fenced, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.pipeline.epoch_manifest import with_statuses
from holdfast.pipeline.recovery import recover_sinks
from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.objects import LocalObjects, open_objects
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace


def taking_over(place: StoreUnderTest) -> Callable[[], None]:
    def take_over() -> None:
        place.open().claim("another driver")

    return take_over


def test_taken_over_before_anything_is_begun(memory: MemoryPlace) -> None:
    world = World(memory.open())
    runner = world.start()
    memory.open().claim("another driver")
    with pytest.raises(Fenced, match="another driver"):
        run(world, runner, 1)
    assert world.history == []


@pytest.mark.parametrize("event", ["stage lake", "staged pg", "snapshot"])
def test_taken_over_before_the_decision(place: StoreUnderTest, event: str) -> None:
    world = World(place.open())
    world.failures.planned[event] = taking_over(place)
    with pytest.raises(Fenced) as fenced:
        run(world, world.start(), 1)
    assert fenced.value.code == "lease.lost"
    assert place.open().list_ids() == []
    assert world.left() == {"lake": 0, "pg": 0}
    assert world.seen("lake") == world.seen("pg") == {}


@pytest.mark.parametrize("state", [b"small", b"x" * (INLINE_THRESHOLD + 1)], ids=["inline", "in a sidecar"])
def test_taken_over_at_the_last_moment_before_the_decision(place: StoreUnderTest, state: bytes) -> None:
    """It decides, but commits nothing: the other one may have removed what one sink staged, and rows differ by run."""
    world = World(place.open(), operators={"counter": Counter(state)})
    first, other, successors = world.start(), place.open(), []

    def take_over(name: str, phase: str, _: float) -> None:
        if (name, phase) == ("manifest.create", "begin") and not successors:
            successors.append(world.start(store=other))
            recover_sinks({"lake": world.named["lake"]}, None, "shop", 2)

    stop = observe(take_over)
    try:
        with pytest.raises(Fenced):
            run(world, first, 1)
    finally:
        stop()
    assert world.seen("lake") == world.seen("pg") == {}
    with pytest.raises(Conflict) as raised:  # both chose the same id, so only one could decide
        run(world, successors[0], 1, SECOND)
    assert raised.value.code == "epoch.decided-elsewhere"
    for sink in world.sinks.values():
        sink.staged.clear()
    run(world, world.start(newest(place.open())), 1, SECOND)
    assert world.seen("lake") == world.seen("pg") == {1: [SECOND]}


def test_decided_by_a_driver_that_was_taken_over(place: StoreUnderTest) -> None:
    world = World(place.open())
    world.failures.planned["snapshot"] = lambda: place.open().save(manifest(1, sink_names=["theirs"]))
    runner = world.start()
    with pytest.raises(Conflict) as raised:
        run(world, runner, 1)
    assert raised.value.code == "epoch.decided-elsewhere"
    assert raised.value.about == "checkpoint 1"
    assert "start the pipeline again" in (raised.value.next_step or "")
    assert isinstance(raised.value.__cause__, Fenced)
    assert newest(place.open()).sink_names == ["theirs"]
    assert world.left() == {"lake": 0, "pg": 0}
    assert world.seen("lake") == {}
    assert runner.delivered == 0


UNSURE = [OutcomeUnknown("no reply"), Unavailable("the disk is full")]


@pytest.mark.parametrize("error", UNSURE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_decision_that_may_have_been_made_is_not_undone(memory: MemoryPlace, when: str, error: Exception) -> None:
    world = World(memory.open())
    runner = world.start(store=faulty_store(memory.url, **{when: error}))
    with pytest.raises(type(error)):
        run(world, runner, 1)
    assert world.left() == {"lake": 1, "pg": 1}
    assert not [entry for entry in world.history if entry[0] in ("rollback", "commit", "confirm")]
    assert memory.open().list_ids() == ([1] if when == "after" else [])
    assert (runner.newest, runner.delivered) == (None, 0)


def test_a_disk_that_fails_after_the_manifest_is_there(tmp_path: Path) -> None:
    class Disk(PosixDisk):
        is_broken = False

        def link(self, existing: str, new: str) -> None:
            super().link(existing, new)
            self.is_broken |= new.endswith("manifest.json")

        def sync_directory(self, path: str) -> None:
            if self.is_broken:
                raise OSError(errno.EIO, "Input/output error")
            super().sync_directory(path)

    world = World(CheckpointStore(LocalObjects(str(tmp_path), disk=Disk()), DirectoryLayout()))
    with pytest.raises(Unavailable):
        run(world, world.start(), 1)
    store = CheckpointStore(LocalObjects(str(tmp_path)), DirectoryLayout())
    assert world.left() == {"lake": 1, "pg": 1}
    run(world, world.start(newest(store), store=store), 1, SECOND)
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}
    assert statuses(store) == {"lake": COMMITTED, "pg": COMMITTED}


def test_a_conflict_with_our_own_decision_rolls_nothing_back(memory: MemoryPlace) -> None:
    """A lost reply may look like somebody else's write, and the next driver may have touched it by then."""

    class Taken(FaultyObjects):
        def create(self, key: str, chunks: Any) -> None:
            super().create(key, chunks)
            if key.startswith("manifests/"):
                store = memory.open()
                store.claim("the next driver")
                store.update_manifest(with_statuses(newest(store), {"lake": COMMITTED}))
                raise Conflict(f"{key} exists already.")

    objects: Any = Taken(open_objects(memory.url), before=None, after=None)
    world = World(memory.open())
    with pytest.raises(HoldfastError):
        run(world, world.start(store=CheckpointStore(objects, ObjectLayout())), 1)
    assert world.left()["pg"] == 1
