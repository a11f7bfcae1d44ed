"""Coming back, the effects: what is seen of store and workdir, what sinks are asked, what the workdir becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointManifest, ConnectorCheckpoint, SinkCommitStatus
from holdfast.checkpoints.manifest import HoldfastSection
from holdfast.errors import Corrupt, Invalid, Unavailable
from holdfast.pipeline.definition import NamedSink, ReferenceTable
from holdfast.pipeline.epoch import Finished, finish_owed
from holdfast.pipeline.recovery import apply_to_workdir, newest_checkpoint, observe, recover_sinks
from holdfast.pipeline.recovery_plan import RecoveryPlan, WorkdirState
from holdfast.pipeline.reference_table import pin_table
from holdfast.pipeline.workdir.owner import OWNER_FILE
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from holdfast.sinks import Delivery, Descriptor, SinkProgress, StagedOutputGone
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace
from workdir_files import OWNER, QUERY_ID, HandMade, HdfsState

PENDING, COMMITTED = SinkCommitStatus.pending(), SinkCommitStatus.committed()


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    return HandMade(tmp_path / "work")


def captured(place: StoreUnderTest, made: HandMade, batches: int, **fields: Any) -> CheckpointManifest:
    """A workdir whose last batch was decided, and its checkpoint."""
    store = place.open()
    snapshotter = WorkdirSnapshotter(made.workdir, store)
    state = HdfsState(made)
    made.begin()
    found = manifest(1)
    for batch in range(batches):
        made.plan(batch)
        state.plan(batch)
        taken = snapshotter.snapshot(batch, batch + 1)
        own = HoldfastSection(batches=taken.batches, inherited=taken.inherited, live=taken.live)
        found = manifest(batch + 1, wal_position=batch, holdfast=own, **fields)
        store.save(found)
        snapshotter.confirm(taken)
        state.run(batch)
        if batch < batches - 1:
            made.commit(batch)
    return found


# What is seen


def test_an_empty_store_and_no_workdir(place: StoreUnderTest, made: HandMade) -> None:
    seen = observe(place.open(), made.workdir)
    assert (seen.newest, seen.skipped, seen.held) == (None, [], {})
    assert seen.workdir == WorkdirState(str(made.root))


def test_a_workdir_as_it_was_captured(place: StoreUnderTest, made: HandMade) -> None:
    found = captured(place, made, 3)
    seen = observe(place.open(), made.workdir)
    assert seen.newest is not None
    assert seen.newest.checkpoint_id == found.checkpoint_id
    assert seen.workdir == WorkdirState(str(made.root), False, "orders", QUERY_ID, True, 2, 1, store="memory://orders")


@pytest.mark.parametrize("path", ["offsets/2", "state/0/0/1.delta", "metadata", "commits/1"])
def test_a_workdir_with_a_damaged_file(memory: MemoryPlace, made: HandMade, path: str) -> None:
    captured(memory, made, 3)
    (made.root / path).write_bytes(b"")
    problem = observe(memory.open(), made.workdir).workdir.problem
    assert path in (problem or "")


def test_a_workdir_that_spark_stumbled_over(memory: MemoryPlace, made: HandMade) -> None:
    captured(memory, made, 2)
    made.workdir.mark_suspect("Unexpected end-of-input")
    assert observe(memory.open(), made.workdir).workdir.suspect_reason == "Unexpected end-of-input"


def test_a_suspicion_that_spark_has_outlived_is_none(memory: MemoryPlace, made: HandMade) -> None:
    """A crash may come before the note is removed."""
    captured(memory, made, 2)
    made.workdir.mark_suspect("Unexpected end-of-input")
    made.commit(1)
    assert observe(memory.open(), made.workdir).workdir.suspect_reason is None
    made.workdir.mark_suspect("again")
    assert observe(memory.open(), made.workdir).workdir.suspect_reason == "again"
    made.workdir.clear_suspicion()
    made.workdir.clear_suspicion()
    assert observe(memory.open(), made.workdir).workdir.suspect_reason is None


def test_a_suspicion_as_the_first_release_noted_it(memory: MemoryPlace, made: HandMade) -> None:
    captured(memory, made, 2)
    (made.root / ".holdfast-suspect").write_text("Unexpected {end-of-input}")
    assert observe(memory.open(), made.workdir).workdir.suspect_reason == "Unexpected {end-of-input}"


def test_a_stranger_in_the_workdir(memory: MemoryPlace, made: HandMade) -> None:
    captured(memory, made, 2)
    (made.root / "notes.txt").touch()
    (made.root / OWNER_FILE).unlink()
    seen = observe(memory.open(), made.workdir).workdir
    assert (seen.pipeline, seen.looks_like_spark) == (None, False)


# The newest checkpoint


def test_damaged_checkpoints_are_passed_over(place: StoreUnderTest) -> None:
    store = place.open()
    store.save(manifest(1))
    store.save(manifest(2))
    place.damage(place.manifest_key(2))
    found, skipped = newest_checkpoint(place.open())
    assert found is not None
    assert found.checkpoint_id == 1
    assert [number for number, _ in skipped] == [2]


def test_where_all_are_damaged_nothing_begins(place: StoreUnderTest) -> None:
    place.open().save(manifest(1))
    place.damage(place.manifest_key(1))
    with pytest.raises(Corrupt) as refused:
        newest_checkpoint(place.open())
    assert refused.value.code == "recovery.nothing-left"


def test_a_checkpoint_of_a_newer_release_is_not_passed_over(place: StoreUnderTest) -> None:
    place.open().save(manifest(1))
    place.plant(2, version=2)
    with pytest.raises(Invalid) as refused:
        newest_checkpoint(place.open())
    assert (refused.value.code, refused.value.about) == ("checkpoint.newer-format", "checkpoint 2")


# Sinks


class AskedSink:
    guarantee = "exactly-once"

    def __init__(self, problem: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._problem = problem

    def describe(self) -> dict[str, Any]:
        return {}

    def prepare(self, schema: Any, delivery: Delivery) -> None: ...

    def stage(self, frame: Any, delivery: Delivery) -> Descriptor:
        raise AssertionError("nothing is staged on the way back")

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self.calls.append(("commit", descriptor, delivery))
        if self._problem:
            raise self._problem

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        raise AssertionError("nothing that was decided is rolled back")

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        self.calls.append(("recover", keep, delivery))
        return SinkProgress(delivery.epoch, delivery.lineage)


def sinks_with(**problems: Exception | None) -> tuple[dict[str, AskedSink], dict[str, NamedSink]]:
    asked = {name: AskedSink(problem) for name, problem in problems.items()}
    return asked, {name: NamedSink(name, sink, None) for name, sink in asked.items()}


DECIDED = manifest(
    9,
    epoch=7,
    sink_commit_statuses={"a": COMMITTED, "b": PENDING, "c": SinkCommitStatus.failed("full")},
    holdfast=HoldfastSection(lineage=2, sinks={name: {"place": name} for name in "abc"}),
)


def test_sinks_are_asked_to_keep_what_is_owed() -> None:
    asked, named = sinks_with(a=None, b=None, c=None, new=None)
    standings = recover_sinks(named, DECIDED, "shop", 5)
    assert standings == dict.fromkeys(named, SinkProgress(7, 2))
    kept = {name: sink.calls[0][1] for name, sink in asked.items()}
    assert kept == {"a": None, "b": {"place": "b"}, "c": {"place": "c"}, "new": None}
    assert asked["b"].calls[0][2] == Delivery("shop", "b", 2, 7, 5)


def test_sinks_are_asked_to_keep_what_a_damaged_checkpoint_decided(place: StoreUnderTest, made: HandMade) -> None:
    """A start that is refused for that damage has to leave what is needed when it was repaired."""
    captured(place, made, 2, sink_commit_statuses={"a": COMMITTED, "b": COMMITTED})
    own = HoldfastSection(sinks={"a": {"place": "a"}, "b": {"place": "b"}})
    store = place.open()
    store.save_with_state(
        manifest(3, holdfast=own, sink_commit_statuses={"a": COMMITTED, "b": PENDING}), [b"state of an operator"]
    )
    place.damage(place.sidecar_key(3))
    seen = observe(place.open(), made.workdir)
    assert seen.newest is not None
    assert seen.newest.checkpoint_id == 2
    asked, named = sinks_with(a=None, b=None, new=None)
    recover_sinks(named, seen.newest, "shop", 5, seen.doubtful)
    assert {name: sink.calls[0][1] for name, sink in asked.items()} == {"a": None, "b": {"place": "b"}, "new": None}
    place.damage(place.manifest_key(3))
    assert observe(place.open(), made.workdir).doubtful is None


def test_sinks_of_a_pipeline_that_never_ran() -> None:
    asked, named = sinks_with(a=None)
    recover_sinks(named, None, "shop", 1)
    assert asked["a"].calls == [("recover", None, Delivery("shop", "a", 0, 0, 1))]


def finished(place: StoreUnderTest, named: dict[str, NamedSink]) -> Finished:
    store = place.open()
    store.save(DECIDED)
    return finish_owed(DECIDED, named, store, pipeline="shop", generation=5)


def statuses(place: StoreUnderTest) -> dict[str, Any]:
    found = place.open().load_by_id(9)
    assert found is not None
    return dict(found.sink_commit_statuses)


def test_sinks_are_finished_under_the_lineage_they_were_staged_for(memory: MemoryPlace) -> None:
    asked, named = sinks_with(a=None, b=None, c=None)
    found = finished(memory, named)
    assert (found.gone, found.failure, found.manifest.owed_sinks) == ({}, None, ())
    assert asked["a"].calls == []
    assert asked["b"].calls == [("commit", {"place": "b"}, Delivery("shop", "b", 2, 7, 5))]
    assert statuses(memory) == dict.fromkeys("abc", COMMITTED)


def test_a_sink_whose_staged_output_is_gone_is_left_to_the_replay(memory: MemoryPlace) -> None:
    gone = StagedOutputGone("gone")
    _, named = sinks_with(b=gone, c=None)
    found = finished(memory, named)
    assert (found.gone, found.failure, found.manifest.owed_sinks) == ({"b": gone}, None, ("b",))
    assert statuses(memory) == {"a": COMMITTED, "b": PENDING, "c": COMMITTED}


def test_a_sink_that_is_not_there_any_more(memory: MemoryPlace) -> None:
    _, named = sinks_with(c=None)
    assert finished(memory, named).manifest.owed_sinks == ("b",)


def test_a_sink_that_cannot_be_reached_stops_the_start_after_the_others_were_tried(memory: MemoryPlace) -> None:
    asked, named = sinks_with(b=Unavailable("down"), c=None)
    found = finished(memory, named)
    with pytest.raises(Unavailable, match=r"Sink 'b' in epoch 7 .*: down"):
        found.raise_failure()
    assert asked["c"].calls != []
    assert statuses(memory) == {"a": COMMITTED, "b": PENDING, "c": COMMITTED}


# The workdir


@pytest.mark.parametrize("action", ["keep", "rebuild", "begin", "adopt"])
def test_a_workdir_is_made_ready(memory: MemoryPlace, made: HandMade, action: Any) -> None:
    found = captured(memory, made, 3)
    before = made.files()
    (made.root / OWNER_FILE).unlink()
    left = made.workdir.new_sibling()
    store = memory.open()
    seen = observe(store, made.workdir)
    snapshotter = WorkdirSnapshotter(made.workdir, store)
    apply_to_workdir(RecoveryPlan(0, action, "x", 3, 3), seen, made.workdir, snapshotter, store, OWNER)
    assert made.workdir.owner() == OWNER
    assert not left.exists()
    assert (made.files() == before) == (action in ("keep", "adopt"))
    assert (made.files() == {}) == (action == "begin")
    if action != "begin":
        taken = snapshotter.snapshot(2, 4)
        assert taken.inherited == found.needed_batches
        assert taken.batches == []


# Reference tables


def table_at(version: str) -> dict[str, ConnectorCheckpoint]:
    return {"customers": ConnectorCheckpoint({"version": version})}


def test_a_table_is_read_at_the_newest_version(memory: MemoryPlace, made: HandMade) -> None:
    assert pin_table("customers", 9, memory.open(), made.workdir) == ReferenceTable("customers", "9")
    assert pin_table("customers", lambda: "x", memory.open(), made.workdir).version == "x"
    checkpoint = ReferenceTable("customers", "9").checkpoint(4)
    assert (checkpoint.offsets, checkpoint.epoch) == ({"version": "9"}, 4)


def test_a_table_is_pinned_while_its_epoch_is_run_again(memory: MemoryPlace, made: HandMade) -> None:
    captured(memory, made, 2, table_offsets=table_at("7"))
    assert pin_table("customers", 9, memory.open(), made.workdir) == ReferenceTable("customers", "7")
    assert pin_table("countries", 9, memory.open(), made.workdir).version == "9"
    made.commit(1)
    assert pin_table("customers", 9, memory.open(), made.workdir) == ReferenceTable("customers", "9")
    made.lose()
    assert pin_table("customers", 9, memory.open(), made.workdir).version == "7"
