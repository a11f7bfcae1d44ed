"""An epoch that fails before or after the decision: what is rolled back, what is recorded, what is said."""

from __future__ import annotations

from typing import Any

import pytest
from epoch_fakes import Counter, Failures, World, epoch_facts
from epoch_runs import COMMITTED, FIRST, PENDING, SECOND, newest, run, statuses
from test_epoch_decision import taking_over

from holdfast import ConnectorCheckpoint
from holdfast.checkpoints.manifest import SinkFailed
from holdfast.errors import Fenced, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.sinks import RowsRefused, StagedOutputGone
from places import MemoryPlace

# Failures before the decision

ERRORS = [
    Unavailable("no route", code="x.y", about="the host", unchanged="the table", next_step="wait"),
    RowsRefused("a null"),
    OutcomeUnknown("no reply"),
    RuntimeError("user code"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("event", "rolled_back"),
    [
        ("stage lake", []),
        ("stage pg", ["lake"]),
        ("evaluate", ["lake", "pg"]),
        ("snapshot", ["lake", "pg"]),
    ],
)
def test_before_the_decision(memory: MemoryPlace, event: str, rolled_back: list[str], error: Exception) -> None:
    views = {name: lambda rows: rows for name in ("lake", "pg")} if event == "evaluate" else None
    world = World(memory.open(), views=views)
    world.failures.planned[event] = error
    runner = world.start()
    with pytest.raises(type(error)):
        run(world, runner, 1)
    assert [entry[1] for entry in world.history if entry[0] == "rollback"] == rolled_back
    assert memory.open().list_ids() == []
    assert world.left() == {"lake": 0, "pg": 0}
    assert world.seen("lake") == world.seen("pg") == {}
    assert ("confirm",) not in world.history
    assert (runner.newest, runner.delivered) == (None, 0)
    run(world, runner, 1, SECOND)
    assert world.seen("lake") == world.seen("pg") == {1: [SECOND]}


def test_an_operator_that_cannot_be_taken(memory: MemoryPlace) -> None:
    class Broken(Counter):
        def snapshot(self) -> bytes:
            raise ValueError("not now")

    world = World(memory.open(), operators={"broken": Broken()})
    with pytest.raises(ValueError, match="not now"):
        run(world, world.start(), 1)
    assert world.left() == {"lake": 0, "pg": 0}
    assert memory.open().list_ids() == []


def test_a_rollback_that_fails_is_left_for_the_next_start(
    memory: MemoryPlace, caplog: pytest.LogCaptureFixture
) -> None:
    failures = Failures(stage_pg=Unavailable("first"), rollback_lake=Unavailable("second"))
    world = World(memory.open(), sinks=("a", "lake", "pg"), failures=failures)
    with pytest.raises(Unavailable, match="first"):
        run(world, world.start(), 1)
    assert world.left() == {"a": 0, "lake": 1, "pg": 0}
    assert "lake" in caplog.text
    assert "second" in caplog.text


# What an error says


def test_what_is_said_of_a_sink_that_did_not_stage(memory: MemoryPlace) -> None:
    error = Unavailable("no route", code="x.y", about="the host", unchanged="the table", next_step="wait")
    world = World(memory.open(), failures=Failures(stage_pg=error))
    with pytest.raises(Unavailable) as raised:
        run(world, world.start(), 1)
    said = raised.value
    assert said.message == "Sink 'pg' in epoch 1 (orders up to orders-0 10): no route"
    assert (said.code, said.about, said.next_step) == ("x.y", "the host", "wait")
    assert said.unchanged == "nothing of this epoch is visible in any sink; the table"
    assert said.__cause__ is error


def test_what_is_said_of_a_sink_that_did_not_commit(memory: MemoryPlace) -> None:
    world = World(memory.open(), failures=Failures(commit_pg=RowsRefused("a null")))
    with pytest.raises(RowsRefused) as raised:
        run(world, world.start(), 1)
    assert raised.value.message == "Sink 'pg' in epoch 1 (orders up to orders-0 10): a null"
    assert raised.value.unchanged == "epoch 1 is decided and will be finished"
    assert raised.value.code == "sink.rows-refused"


def test_many_offsets_are_cut_short(memory: MemoryPlace) -> None:
    sources = {
        "orders": ConnectorCheckpoint({f"orders-{number}": str(number) for number in range(9)}),
        "clicks": ConnectorCheckpoint({"offset": "5"}),
        "none yet": ConnectorCheckpoint({}),
    }
    world = World(memory.open(), failures=Failures(stage_lake=Unavailable("x")))
    with pytest.raises(Unavailable) as raised:
        world.run(world.start(), FIRST, epoch_facts(1, sources=sources))
    assert "orders up to orders-0 0, orders-1 1, orders-2 2, orders-3 3 and 5 more; clicks" in raised.value.message


# After the decision

OUTCOMES: list[tuple[dict[str, Exception], dict[str, Any]]] = [
    ({"commit lake": Unavailable("down")}, {"lake": PENDING, "pg": COMMITTED}),
    ({"commit pg": Unavailable("down")}, {"lake": COMMITTED, "pg": PENDING}),
    ({"commit lake": RowsRefused("a null")}, {"lake": SinkFailed("a null"), "pg": COMMITTED}),
    ({"commit pg": Invalid("not yours")}, {"lake": COMMITTED, "pg": SinkFailed("not yours")}),
    ({"commit lake": RuntimeError("user code")}, {"lake": PENDING, "pg": COMMITTED}),
    ({"commit lake": OutcomeUnknown("no reply")}, {"lake": PENDING, "pg": COMMITTED}),
    ({"commit lake": StagedOutputGone("gone")}, {"lake": PENDING, "pg": COMMITTED}),
    ({"commit lake": Unavailable("one"), "commit pg": Unavailable("two")}, {"lake": PENDING, "pg": PENDING}),
    ({"commit lake": RowsRefused("one"), "commit pg": RuntimeError("two")}, {"lake": SinkFailed("one"), "pg": PENDING}),
    ({"committed lake": Unavailable("reply lost")}, {"lake": PENDING, "pg": COMMITTED}),
]


@pytest.mark.parametrize(("problems", "recorded"), OUTCOMES)
def test_a_commit_that_fails(memory: MemoryPlace, problems: dict[str, Exception], recorded: dict[str, Any]) -> None:
    world = World(memory.open())
    world.failures.planned.update(problems)
    runner = world.start()
    first = next(iter(problems.values()))
    with pytest.raises(type(first)) as raised:
        run(world, runner, 1)
    shown = raised.value.message if isinstance(raised.value, HoldfastError) else str(raised.value)
    assert str(first) in shown
    assert statuses(memory.open()) == recorded
    epochs = {name: 1 for name, status in recorded.items() if status == COMMITTED}
    assert newest(memory.open()).sink_epochs == epochs
    assert not [entry for entry in world.history if entry[0] == "rollback"]
    assert [entry[1] for entry in world.history if entry[0] == "commit"] == ["lake", "pg"]
    assert runner.delivered == 1
    run(world, runner, 1, SECOND)  # as Spark would after a restart: finished, not undone
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}
    assert statuses(memory.open()) == {"lake": COMMITTED, "pg": COMMITTED}


def test_a_record_that_fails(memory: MemoryPlace) -> None:
    world = World(memory.open())
    runner = world.start()
    world.failures.planned["committed pg"] = taking_over(memory)
    with pytest.raises(Fenced):
        run(world, runner, 1)
    assert world.seen("lake") == world.seen("pg") == {1: [FIRST]}
    assert statuses(memory.open()) == {"lake": PENDING, "pg": PENDING}
    assert runner.delivered == 1
    assert runner.newest is not None
    assert not runner.newest.is_settled
