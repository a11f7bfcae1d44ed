"""One epoch and every way it can go wrong: what is rolled back, what is finished, what is recorded, what is said."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from epoch_fakes import Counter, Failures, FaultyObjects, Killed, Rows, World, batch_object, epoch_facts, faulty_store
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import CheckpointManifest, CheckpointStore, ConnectorCheckpoint, SinkCommitStatus
from holdfast.base.steps import observe
from holdfast.checkpoints.layout import DirectoryLayout, ObjectLayout
from holdfast.checkpoints.manifest import SinkFailed
from holdfast.checkpoints.operator_state import INLINE_THRESHOLD
from holdfast.errors import Conflict, Corrupt, Fenced, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.pipeline.epoch import EpochCoordinator, finish_owed
from holdfast.pipeline.epoch_manifest import with_statuses
from holdfast.pipeline.recovery import recover_sinks
from holdfast.pipeline.recovery_plan import Observation, PipelineSpec, WorkdirState, plan_recovery
from holdfast.pipeline.workdir.snapshot import Snapshot
from holdfast.sinks import Delivery, Descriptor, RowsRefused, StagedOutputGone
from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.objects import LocalObjects, open_objects
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace

FIRST, SECOND = ("rows of the first try",), ("other rows",)
COMMITTED, PENDING = SinkCommitStatus.committed(), SinkCommitStatus.pending()


def newest(store: CheckpointStore) -> CheckpointManifest:
    found = store.load_latest()
    assert found is not None
    return found


def statuses(store: CheckpointStore) -> dict[str, Any]:
    return dict(newest(store).sink_commit_statuses)


def run(world: World, runner: EpochCoordinator, epoch: int, rows: Rows = FIRST) -> None:
    world.run(runner, rows, epoch_facts(epoch))


# An epoch without trouble


def test_the_order_of_things(place: StoreUnderTest) -> None:
    world = World(place.open())
    runner = world.start()
    run(world, runner, 1)
    assert world.history == [
        ("stage", "lake", "1"),
        ("stage", "pg", "1"),
        ("snapshot", "1"),
        ("confirm",),
        ("commit", "lake", "1"),
        ("commit", "pg", "1"),
    ]
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


# Views


def test_views(memory: MemoryPlace) -> None:
    world = World(memory.open(), views={"pg": lambda rows: (*rows, "seen by pg")})
    run(world, world.start(), 1)
    assert world.seen("lake") == {1: [FIRST]}
    assert world.seen("pg") == {1: [(*FIRST, "seen by pg")]}
    assert ("evaluate",) not in world.history  # lake takes the whole frame


def test_where_all_have_views_the_frame_is_evaluated(memory: MemoryPlace) -> None:
    world = World(memory.open(), views={"pg": lambda rows: rows[:0], "lake": lambda rows: rows[:0]})
    run(world, world.start(), 1)
    assert world.history[2:4] == [("evaluate",), ("snapshot", "1")]


def test_a_view_that_raises(memory: MemoryPlace) -> None:
    def view(_: Any) -> Any:
        raise ZeroDivisionError

    world = World(memory.open(), views={"pg": view})
    runner = world.start()
    with pytest.raises(ZeroDivisionError):
        run(world, runner, 1)
    assert world.left() == {"lake": 0, "pg": 0}
    assert memory.open().list_ids() == []


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


# Around the decision


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


# An epoch once more


def decided(world: World, **status: Any) -> CheckpointManifest:
    """Epoch 1 decided by a driver that ended before its commits, but for those that are said to be."""
    world.failures.planned["commit lake"] = Killed()
    with pytest.raises(Killed):
        run(world, world.start(), 1)
    found = newest(world.store)
    for name in status:
        world.sinks[name].visible[0, 1] = [FIRST]
    if status:
        found = with_statuses(found, status)
        world.store.update_manifest(found)
    world.history.clear()
    return found


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


# Any failure at any place, and what the next driver makes of it


class Supervised:
    """Starts drivers one after the other, as a supervisor would, until Spark has counted all epochs as done."""

    def __init__(self, memory: MemoryPlace, epochs: int) -> None:
        self.memory = memory
        self.world = World(memory.open())
        self.epochs = epochs
        self.done = 0
        self.tries = 0

    def attempt(self) -> None:
        """One driver's life; raises what ended it."""
        store = self.memory.open()
        chosen = store.recover_latest_validated().require()
        found = store.load_by_id(chosen) if chosen else None
        generation = store.claim("a driver").generation
        standings = recover_sinks(self.world.named, found, "shop", generation)
        planned = self.done  # Spark has planned one more than it counts as done
        workdir = WorkdirState("/data/work", False, "shop", "q-1", True, planned, planned - 1)
        wanted = PipelineSpec("shop", 77, frozenset({"orders"}), frozenset(self.world.sinks))
        plan = plan_recovery(Observation(self.memory.url, found, workdir, [], standings), wanted)
        if found is not None and plan.owed_sinks:
            finished = finish_owed(found, self.world.named, store, pipeline="shop", generation=generation)
            finished.raise_failure()
            found = finished.manifest
        runner = self.world.start(found, plan.delivered, store=store)
        while self.done < self.epochs:
            self.tries += 1
            run(
                self.world, runner, self.done + 1, (f"epoch {self.done + 1}, try {self.tries}",)
            )  # never the same rows again
            self.world.failures.at("return")
            self.done += 1

    def check(self) -> None:
        """Every epoch once in each sink, the same rows in both, and nothing left behind."""
        lake, pg = self.world.seen("lake"), self.world.seen("pg")
        assert list(lake) == list(range(1, self.epochs + 1))
        assert lake == pg
        assert all(len(rows) == 1 for rows in lake.values())
        assert self.world.left() == {"lake": 0, "pg": 0}
        assert statuses(self.memory.open()) == {"lake": COMMITTED, "pg": COMMITTED}
        store = self.memory.open()
        assert all(store.validate_checkpoint(number).valid for number in store.list_ids())


def events_of_a_run() -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    stop = observe(lambda name, phase, _: seen.append((name, phase)))
    try:
        Supervised(MemoryPlace(), 2).attempt()
    finally:
        stop()
    return seen


def test_killed_at_every_step(memory: MemoryPlace) -> None:
    total = len(events_of_a_run())
    assert total > 30
    for fatal in range(total):
        supervised = Supervised(MemoryPlace(), 2)
        count = iter(range(total + 1))

        def observer(name: str, phase: str, _: float, count: Any = count, fatal: int = fatal) -> None:
            if next(count) == fatal:
                raise Killed

        stop = observe(observer)
        try:
            with pytest.raises(Killed):
                supervised.attempt()
        finally:
            stop()
        supervised.attempt()
        supervised.check()


POINTS = [
    *(f"{what} {sink}" for what in ("stage", "staged", "commit", "committed", "rollback") for sink in ("lake", "pg")),
    *("snapshot", "evaluate", "return"),
]
PROBLEMS: dict[str, type[BaseException]] = {
    "unavailable": Unavailable,
    "refused": RowsRefused,
    "unknown": OutcomeUnknown,
    "user": RuntimeError,
    "killed": Killed,
}


@settings(max_examples=60)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(POINTS), st.sampled_from(sorted(PROBLEMS)), min_size=1, max_size=3), max_size=5
    )
)
def test_failures_after_failures(troubles: list[dict[str, str]]) -> None:
    supervised = Supervised(MemoryPlace(), 3)
    for trouble in troubles:
        supervised.world.failures.planned = {at: PROBLEMS[kind]("trouble") for at, kind in trouble.items()}
        try:
            supervised.attempt()
        except (HoldfastError, RuntimeError, Killed):
            continue
    supervised.world.failures.planned = {}
    supervised.attempt()
    supervised.check()
