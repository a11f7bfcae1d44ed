"""One epoch without trouble: the order of things, views, operators."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from epoch_fakes import Counter, Rows, World, batch_object
from epoch_runs import COMMITTED, FIRST, decided, newest, run

from holdfast.base.steps import observe
from holdfast.checkpoints.operator_state import INLINE_THRESHOLD
from holdfast.errors import Corrupt
from holdfast.pipeline.epoch_manifest import with_statuses
from holdfast.pipeline.workdir.snapshot import Snapshot
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace


def test_the_order_of_things(place: StoreUnderTest) -> None:
    world = World(place.open())
    runner = world.start()
    run(world, runner, 1)
    assert [what for what in world.history if what != ("snapshot", "1")] == [
        ("stage", "lake", "1"),
        ("stage", "pg", "1"),
        ("confirm",),
        ("commit", "lake", "1"),
        ("commit", "pg", "1"),
    ]
    assert world.history.index(("snapshot", "1")) < world.history.index(("confirm",))
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}
    assert world.left() == {"lake": 0, "pg": 0}
    saved = newest(place.open())
    assert (saved.checkpoint_id, saved.epoch, saved.timestamp_ms) == (1, 1, 1_760_000_000_500)
    assert saved.sink_commit_statuses == {"lake": COMMITTED, "pg": COMMITTED}
    assert saved.sink_epochs == {"lake": 1, "pg": 1}
    assert saved.own.generation == 1
    assert place.open().validate_checkpoint(1).valid
    assert (runner.delivered, runner.newest) == (1, with_statuses(runner.newest or saved, {}))


def test_nothing_is_visible_before_the_decision(memory: MemoryPlace) -> None:
    world = World(memory.open())
    ahead: list[tuple[list[int], dict[int, list[Rows]]]] = []
    stop = observe(
        lambda name, phase, _: (
            ahead.append((memory.open().list_ids(), world.seen("lake")))
            if (name, phase) == ("sink.commit", "begin")
            else None
        )
    )
    try:
        run(world, world.start(), 1)
    finally:
        stop()
    assert ahead[0] == ([1], {})


def test_many_epochs(place: StoreUnderTest) -> None:
    world = World(place.open(max_retained=3))
    runner = world.start()
    for epoch in range(1, 9):
        run(world, runner, epoch, (f"rows {epoch}",))
    assert world.seen("lake") == world.seen("pg") == {epoch: [(f"rows {epoch}",)] for epoch in range(1, 9)}
    assert place.open().list() == [(6, 6), (7, 7), (8, 8)]


def test_ids_go_on_above_everything_there(place: StoreUnderTest) -> None:
    place.open().save(manifest(7))
    world = World(place.open())
    run(world, world.start(newest(place.open())), 8)
    assert place.open().list() == [(7, 7), (8, 8)]


def test_what_was_captured_is_in_the_manifest(memory: MemoryPlace) -> None:
    store = memory.open()
    store.objects.create(batch_object(1).key, [b"x" * batch_object(1).bytes])
    world = World(store, snapshot=Snapshot([batch_object(1)], []))
    run(world, world.start(), 1)
    assert newest(memory.open()).own.batches == [batch_object(1)]


def test_steps_are_named(memory: MemoryPlace) -> None:
    seen: list[str] = []
    stop = observe(lambda name, phase, _: seen.append(name) if phase == "begin" else None)
    try:
        world = World(memory.open())
        run(world, world.start(), 1)
    finally:
        stop()
    ours = [name for name in seen if name.startswith(("sink.", "epoch."))]
    assert ours == [*["sink.stage"] * 2, "epoch.capture", "epoch.decide", *["sink.commit"] * 2, "epoch.settle"]
    assert seen.index("epoch.decide") < seen.index("manifest.create") < seen.index("sink.commit")


# The snapshot beside the batch


class WaitingSnapshotter:
    """One that is done when it is told to be."""

    def __init__(self, world: World) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.ended_after: list[tuple[str, ...]] = []
        self._world = world

    def snapshot(self, batch_id: int, epoch: int) -> Snapshot:
        self.has_begun.set()
        assert self.may_end.wait(10)
        self.ended_after = list(self._world.history)
        return Snapshot([], [])

    def confirm(self, snapshot: Snapshot) -> None:
        pass


def test_the_snapshot_is_taken_while_sinks_stage(memory: MemoryPlace) -> None:
    def stage_meanwhile(rows: Any) -> Any:
        assert waiting.has_begun.wait(10), "staging does not wait for the snapshot"
        waiting.may_end.set()
        return rows

    world = World(memory.open(), views={"pg": stage_meanwhile})
    world.snapshotter = waiting = WaitingSnapshotter(world)
    run(world, world.start(), 1)
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}


def test_nothing_is_rolled_back_while_the_snapshot_is_taken(memory: MemoryPlace) -> None:
    """It uses the store, and so does whoever comes after the failure."""
    world = World(memory.open())
    world.snapshotter = waiting = WaitingSnapshotter(world)
    world.failures.planned["stage pg"] = Corrupt("The disk is damaged.")
    threading.Timer(0.2, waiting.may_end.set).start()
    with pytest.raises(Corrupt, match="damaged"):
        run(world, world.start(), 1)
    assert world.history[-1] == ("rollback", "lake", "1")
    assert ("stage", "lake", "1") in waiting.ended_after
    assert ("rollback", "lake", "1") not in waiting.ended_after


def test_a_snapshot_that_fails_decides_nothing(memory: MemoryPlace) -> None:
    world = World(memory.open())
    world.failures.planned["snapshot"] = Corrupt("A state file is missing.", code="workdir.incomplete")
    with pytest.raises(Corrupt, match="state file"):
        run(world, world.start(), 1)
    assert memory.open().list() == []
    assert world.left() == {"lake": 0, "pg": 0}


# Views


def test_a_sink_gets_the_rows_of_its_view(memory: MemoryPlace) -> None:
    world = World(memory.open(), views={"pg": lambda rows: (*rows, "seen by pg")})
    run(world, world.start(), 1)
    assert world.seen("lake") == {1: [FIRST]}
    assert world.seen("pg") == {1: [(*FIRST, "seen by pg")]}
    assert ("evaluate",) not in world.history  # lake takes the whole frame


def test_where_all_have_views_the_frame_is_evaluated(memory: MemoryPlace) -> None:
    world = World(memory.open(), views={"pg": lambda rows: rows[:0], "lake": lambda rows: rows[:0]})
    run(world, world.start(), 1)
    assert world.history.index(("stage", "pg", "1")) < world.history.index(("evaluate",))
    assert world.history.index(("evaluate",)) < world.history.index(("confirm",))


def test_a_view_that_raises(memory: MemoryPlace) -> None:
    def view(_: Any) -> Any:
        raise ZeroDivisionError

    world = World(memory.open(), views={"pg": view})
    runner = world.start()
    with pytest.raises(ZeroDivisionError):
        run(world, runner, 1)
    assert world.left() == {"lake": 0, "pg": 0}
    assert memory.open().list_ids() == []


# Operators


def test_operators_are_in_the_checkpoint(place: StoreUnderTest) -> None:
    large = bytes(range(256)) * (INLINE_THRESHOLD // 256) + b"!"
    world = World(place.open(), operators={"small": Counter(b"17"), "large": Counter(large), "empty": Counter()})
    run(world, world.start(), 1)
    assert place.open().load_states(1) == {"small": b"17", "large": large, "empty": b""}
    assert place.open().validate_checkpoint(1).valid


def test_operators_after_a_replay_are_where_the_checkpoint_has_them(memory: MemoryPlace) -> None:
    counter = Counter(b"one")
    world = World(memory.open(), operators={"counter": counter})
    found = decided(world)
    counter.state = b"fed twice"
    world.operators["new"] = Counter(b"new")
    run(world, world.start(found), 1)
    assert counter.restored == [b"one"]
    assert world.operators["new"].restored == []


def test_operators_are_restored_after_what_the_sinks_did(memory: MemoryPlace) -> None:
    """A view may feed an operator; what it fed during a replay must not count twice."""
    counter = Counter(b"1")

    def view(rows: Any) -> Any:
        counter.state += b"+1"
        return rows

    world = World(memory.open(), views={"pg": view}, operators={"counter": counter})
    found = decided(world)
    assert counter.state == b"1+1"
    world.sinks["pg"].staged.clear()
    run(world, world.start(found), 1)
    assert counter.state == b"1+1"
