"""An epoch once more: what is finished is only evaluated, what is owed is finished."""

from __future__ import annotations

from typing import Any

import pytest
from epoch_fakes import World
from epoch_runs import COMMITTED, FIRST, PENDING, SECOND, decided, newest, run, statuses

from holdfast import SinkCommitStatus
from holdfast.errors import Corrupt, Fenced, HoldfastError, Unavailable
from holdfast.pipeline.epoch_manifest import with_statuses
from holdfast.sinks import Delivery, Descriptor, RowsRefused, StagedOutputGone
from places import MemoryPlace


def test_replay_of_what_is_finished_only_evaluates(memory: MemoryPlace) -> None:
    world = World(memory.open())
    found = decided(world, lake=COMMITTED, pg=COMMITTED)
    run(world, world.start(found), 1, SECOND)
    assert world.history == [("evaluate",)]
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}
    assert memory.open().list_ids() == [1]


def test_replay_finishes_from_what_was_staged(memory: MemoryPlace) -> None:
    world = World(memory.open())
    found = decided(world, pg=COMMITTED)
    run(world, world.start(found), 1, SECOND)
    assert world.history == [("commit", "lake", "1"), ("evaluate",)]
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}
    assert statuses(memory.open()) == {"lake": COMMITTED, "pg": COMMITTED}
    assert newest(memory.open()).sink_epochs == {"lake": 1, "pg": 1}


def test_replay_writes_again_what_is_gone(memory: MemoryPlace) -> None:
    world = World(memory.open())
    found = decided(world)
    for sink in world.sinks.values():
        sink.staged.clear()
    run(world, world.start(found), 1, SECOND)
    assert world.history == [
        *[("commit", "lake", "1"), ("stage", "lake", "1"), ("commit", "lake", "1")],
        *[("commit", "pg", "1"), ("stage", "pg", "1"), ("commit", "pg", "1")],
        ("evaluate",),
    ]
    assert world.seen("lake") == world.seen("pg") == {1: [SECOND]}
    assert statuses(memory.open()) == {"lake": COMMITTED, "pg": COMMITTED}


def test_a_replay_that_was_taken_over_while_it_staged_commits_nothing(memory: MemoryPlace) -> None:
    """The successor may have removed what was staged: a commit that names it would lose the epoch."""
    world = World(memory.open())
    found = decided(world)
    lake = world.sinks["lake"]
    lake.staged.clear()
    runner = world.start(found)
    world.store.claim("this driver")
    stage = lake.stage

    def taken_over(frame: Any, delivery: Delivery) -> Descriptor:
        descriptor = stage(frame, delivery)
        memory.open().claim("its successor")
        return descriptor

    lake.stage = taken_over  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        run(world, runner, 1, SECOND)
    assert world.seen("lake") == {}


def test_a_replay_whose_output_is_gone_once_more_stops(memory: MemoryPlace) -> None:
    """If it returned, Spark would take the epoch for done, and the sink would never get it."""
    world = World(memory.open())
    found = decided(world)
    lake = world.sinks["lake"]
    stage = lake.stage

    def vanishing(frame: Any, delivery: Delivery) -> Descriptor:
        descriptor = stage(frame, delivery)
        lake.staged.clear()
        return descriptor

    lake.staged.clear()
    lake.stage = vanishing  # type: ignore[method-assign]
    with pytest.raises(StagedOutputGone, match="Sink 'lake' in epoch 1"):
        run(world, world.start(found), 1, SECOND)
    assert ("evaluate",) not in world.history
    assert statuses(memory.open()) == {"lake": PENDING, "pg": COMMITTED}


def test_replay_gives_views_what_they_had(memory: MemoryPlace) -> None:
    world = World(memory.open(), views={"pg": lambda rows: (*rows, "seen by pg")})
    found = decided(world)
    world.sinks["pg"].staged.clear()
    run(world, world.start(found), 1, FIRST)
    assert world.seen("pg") == {1: [(*FIRST, "seen by pg")]}


def test_replay_of_a_sink_that_had_refused(memory: MemoryPlace) -> None:
    world = World(memory.open())
    found = with_statuses(decided(world), {"lake": SinkCommitStatus.failed("a null")})
    world.store.update_manifest(found)
    run(world, world.start(found), 1)
    assert statuses(memory.open()) == {"lake": COMMITTED, "pg": COMMITTED}


def test_replay_without_a_sink_that_owes(memory: MemoryPlace) -> None:
    world = World(memory.open())
    found = decided(world, pg=COMMITTED)
    del world.sinks["lake"]
    run(world, world.start(found), 1)
    assert world.history == [("evaluate",)]
    assert statuses(memory.open()) == {"lake": PENDING, "pg": COMMITTED}


@pytest.mark.parametrize("error", [Unavailable("down"), RowsRefused("a null"), RuntimeError("user code")])
def test_a_replay_that_fails(memory: MemoryPlace, error: Exception) -> None:
    world = World(memory.open())
    found = decided(world)
    world.failures.planned["commit pg"] = error
    runner = world.start(found)
    with pytest.raises(type(error)) as raised:
        run(world, runner, 1)
    if isinstance(raised.value, HoldfastError):
        assert raised.value.message.startswith("Sink 'pg' in epoch 1 (orders up to orders-0 10): ")
        assert "decided" in (raised.value.unchanged or "")
    assert not [entry for entry in world.history if entry[0] == "rollback"]
    run(world, runner, 1, SECOND)
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}
    assert statuses(memory.open()) == {"lake": COMMITTED, "pg": COMMITTED}


def test_an_epoch_out_of_order(memory: MemoryPlace) -> None:
    world = World(memory.open())
    runner = world.start()
    run(world, runner, 1)
    world.history.clear()
    for epoch in (3, 9):
        with pytest.raises(Corrupt, match=f"epoch {epoch}"):
            run(world, runner, epoch)
    assert world.history == []


def test_after_a_replay_the_next_epoch_follows(memory: MemoryPlace) -> None:
    world = World(memory.open())
    runner = world.start(decided(world))
    run(world, runner, 1)
    run(world, runner, 2, SECOND)
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST], 2: [SECOND]}
    assert memory.open().list() == [(1, 1), (2, 2)]
