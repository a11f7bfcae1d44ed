"""Projections on Spark make what they make in one process, byte for byte, or nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import projection_lives
import pytest
from ledgers import LETTERS, NOW, ByAmount, InTables, Ledger, Sums, copied, fill, in_process, kept, opened

from holdfast.base.steps import observe, observed_by
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.projections import (
    Event,
    OnError,
    Projection,
    ProjectionStore,
    ProjectionWorker,
    View,
    keys,
    open_projections,
    state,
)
from holdfast.projections import ProjectionRunner as InProcess
from holdfast.projections.spark.executor import GroupView
from holdfast.projections.spark.merge import GroupResult, MergedResult, StreamRange
from holdfast.projections.spark.runner import in_groups
from holdfast.spark import ProjectionRunner
from holdfast.storage.kv.memory import MemoryStore
from holdfast.testing.conformance.projections.subject import CountedStore, paid
from holdfast.testing.faults.crash import kill_at
from servers.postgres import PostgresServer
from sparks import ATTEMPTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pair:
    """Two stores with the same events: one for this process, one for Spark."""

    def __init__(self, spark: SparkSession, folder: Path, prepare: Callable[[ProjectionStore], object]) -> None:
        self.spark = spark
        with opened(folder / "here.db") as store:
            prepare(store)
        self.here = opened(folder / "here.db")
        self.there = opened(copied(folder / "here.db", "there.db"))

    def catch_up(self, projection: Projection, **options: Any) -> None:
        """Both, in batches of different sizes."""
        InProcess(self.here, batch=7, **options).catch_up_persistent(projection)
        ProjectionRunner(self.there, self.spark, batch=45, **options).catch_up_persistent(projection)

    def fail(self, projection: Projection, **options: Any) -> HoldfastError:
        """Both raise the same; what they raise."""
        raised = []
        for runner in (InProcess(self.here, **options), ProjectionRunner(self.there, self.spark, **options)):
            with pytest.raises(HoldfastError) as caught:
                runner.catch_up_persistent(projection)
            raised.append(caught.value)
        assert str(raised[0]) == str(raised[1])
        assert type(raised[0]) is type(raised[1])
        return raised[1]

    def check(self) -> None:
        assert kept(self.there) == kept(self.here)
        assert kept(self.there)["views"]


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Callable[..., Pair]:
    return lambda prepare: Pair(spark, tmp_path, prepare)


def test_on_postgres_the_same_as_in_one_process(spark: SparkSession, pg_server: PostgresServer, tmp_path: Path) -> None:
    """Executors reach the store with the address that it was opened with, password and all."""
    with opened(tmp_path / "here.db") as here, open_projections(pg_server.new_database()) as there:
        for store in (here, there):
            fill(store, 60, bad=11)
        InProcess(here, on_error=LETTERS).catch_up_persistent(Ledger())
        ProjectionRunner(there, spark, on_error=LETTERS).catch_up_persistent(Ledger())
        assert kept(there)["views"] == kept(here)["views"] != []
        assert kept(there)["cursors"] == kept(here)["cursors"]
        assert [letter.position for letter in there.dead_letters("ledger")] == [11, 22, 33, 44, 55]


def test_the_same_as_in_one_process_with_events_put_aside(pair: Callable[..., Pair]) -> None:
    both = pair(lambda store: fill(store, 80, bad=11))
    both.catch_up(Ledger(), on_error=LETTERS)
    both.check()
    letters = both.there.dead_letters("ledger")
    assert [letter.attempts for letter in letters] == [2] * 7
    for store in (both.here, both.there):
        fill(store, 15, first=80, bad=11)
    both.catch_up(Ledger(), on_error=LETTERS)
    both.check()
    both.catch_up(ByAmount())
    both.check()


def test_it_stops_where_one_process_stops(pair: Callable[..., Pair]) -> None:
    both = pair(lambda store: fill(store, 40, bad=17))
    error = both.fail(Ledger())
    assert error.code == "projection.handler"
    assert 'raise Boom("bad amount")' in str(error.__cause__)
    both.check()
    assert both.there.lag("ledger").position == 16
    both.fail(Ledger(), on_error=OnError(retries=1, wait=0.0))
    both.check()


def test_attempts_are_counted_in_the_store_and_nothing_sleeps(spark: SparkSession, tmp_path: Path) -> None:
    """On Spark, in process and on Spark again: one series of attempts, each only when the event is due."""
    now = NOW
    store = opened(tmp_path / "events.db", clock=lambda: now)
    fill(store, 30, bad=11)
    policy = OnError(retries=2, wait=3.0, then="dead-letter")
    on_spark = ProjectionRunner(store, spark, on_error=policy)

    def attempt(runner: InProcess) -> tuple[int, int | None, int]:
        done = runner.catch_up_persistent(Ledger(), wait=False)
        return done.position, done.failed and done.failed.attempts, done.dead_lettered

    assert attempt(on_spark) == (10, 1, 0)
    assert store.load_projection_checkpoint("ledger").cursors != {}
    seen: list[str] = []
    with observed_by(lambda name, _phase, _seconds: seen.append(name)):
        assert attempt(on_spark) == (10, 1, 0)  # not due
    assert seen == []
    now += 3
    assert attempt(InProcess(store, on_error=policy)) == (10, 2, 0)
    now += 6
    worker = ProjectionWorker(on_spark, [Ledger()])  # it gives the first bad event up, and comes to the second
    assert not worker.turn()
    health = worker.health().projections["ledger"]
    assert (health.state, health.position) == ("retrying", 21)
    assert [(letter.position, letter.attempts) for letter in store.dead_letters("ledger")] == [(11, 3)]
    assert attempt(ProjectionRunner(store, spark, on_error=OnError(retries=0, then="dead-letter"))) == (30, None, 1)
    assert [letter.attempts for letter in store.dead_letters("ledger")] == [3, 2]


def test_an_event_that_failed_is_tried_alone(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each attempt at one of many bad events would handle all the others of the batch, too."""
    with opened(tmp_path / "events.db") as store, caplog.at_level(logging.DEBUG, "holdfast.steps"):
        fill(store, 40, bad=11)
        ProjectionRunner(store, spark, on_error=LETTERS).catch_up_persistent(Ledger())
        assert len(store.dead_letters("ledger")) == 3
    steps: list[Any] = [record.args for record in caplog.records]
    sizes = [details["events"] for name, _phase, _seconds, details in steps if name == "projection.handle"]
    # All of them, the first attempt at the first bad one; then the events between, and the other five attempts.
    assert sorted(sizes, reverse=True) == [40, 10, 10, 10, 7, 1, 1, 1, 1, 1]


def test_cursors_that_were_set_by_hand_are_honoured(pair: Callable[..., Pair]) -> None:
    def prepare(store: ProjectionStore) -> None:
        fill(store, 30)
        in_process(store, Ledger())
        before = store.load_projection_checkpoint("ledger")
        fill(store, 30, first=30)
        after = before.copy()
        after.advance("account-3", store.stream_version("account-3") - 1)
        store.advance_projection_cursors("ledger", before, after)

    both = pair(prepare)
    both.catch_up(Ledger())
    both.check()
    for store in (both.here, both.there):
        checkpoint = store.load_projection_checkpoint("ledger")
        checkpoint.cursors["account-1"] -= 2
        del checkpoint.cursors["account-2"]
        store.save_projection_checkpoint("ledger", checkpoint)
    both.catch_up(Ledger())
    both.check()
    for store in (both.here, both.there):
        checkpoint = store.load_projection_checkpoint("ledger")
        checkpoint.cursors["account-1"] += 5
        checkpoint.cursors["account-2"] -= 1
        store.save_projection_checkpoint("ledger", checkpoint)
        store.append("account-1", [paid(1)])
    assert both.fail(Ledger()).code == "cursor.ahead"


def test_a_projection_that_reads_more_streams_than_before(pair: Callable[..., Pair]) -> None:
    class Some(Ledger):
        streams = "account-1"

    def prepare(store: ProjectionStore) -> None:
        fill(store, 30)

    both = pair(prepare)
    both.catch_up(Some())
    both.check()
    for store in (both.here, both.there):
        fill(store, 30, first=30)
    assert both.fail(Ledger()).code == "cursor.gap"
    both.check()


def test_a_batch_is_one_commit_of_what_changed(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path / "p.db") as store:
        counts = store.kv
        assert isinstance(counts, CountedStore)
        fill(store, 50)
        runner = ProjectionRunner(store, spark)
        runner.catch_up_persistent(Ledger())
        for stream in ("account-1", "account-5"):
            store.append(stream, [paid(1), paid(2)])
        counts.forget()
        done = runner.catch_up_persistent(Ledger())
        assert (done.handled, done.cursors, done.position) == (4, 2, 54)
        assert len(counts.commits) == 1
        assert sorted(key for key, _ in counts.written("cursors")) == [b"ledger/account-1", b"ledger/account-5"]
        assert len(counts.written("views")) == 6
        assert len(counts.written("meta")) == 1
        counts.forget()
        assert runner.catch_up_persistent(Ledger()).is_at_the_end
        assert (len(counts.reads), counts.commits) == (2, [])


def test_another_runner_that_commits_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "p.db"
    with opened(place) as store, open_projections(f"sqlite:///{place}") as other:
        fill(store, 40)
        seen: list[str] = []

        def interfere(name: str, phase: str, _: float) -> None:
            if (name, phase) == ("projection.handle", "end"):
                seen.append(name)
                if len(seen) == 1:
                    InProcess(other, batch=10).catch_up_persistent(Ledger(), batches=1)

        stop = observe(interfere)
        try:
            done = ProjectionRunner(store, spark).catch_up_persistent(Ledger())
        finally:
            stop()
        assert len(seen) == 2
        assert (done.handled, done.position) == (30, 40)
        with opened(tmp_path / "fresh.db") as fresh:
            fill(fresh, 40)
            in_process(fresh, Ledger())
            assert kept(store) == kept(fresh)


def test_a_rebuild_switches_over_in_one_step(pair: Callable[..., Pair]) -> None:
    class Corrected(Ledger):
        version = 2

        def handle(self, event: Event, view: View) -> None:
            super().handle(event, view)
            view.put(b"corrected/" + event.stream.encode(), b"yes")

    both = pair(lambda store: fill(store, 30))
    both.catch_up(Ledger())
    both.catch_up(Corrected(), on_version="rebuild")
    both.check()
    assert both.there.view("ledger").get(b"corrected/account-1") == b"yes"


def test_on_slatedb_the_executors_fence_nobody(spark: SparkSession, tmp_path: Path) -> None:
    with open_projections(f"file://{tmp_path}/slate") as store, open_projections("memory://") as fresh:
        for one in (store, fresh):
            fill(one, 30)
            fill(one, 20, first=30)
        ProjectionRunner(store, spark, batch=40).catch_up_persistent(Ledger())
        in_process(fresh, Ledger())
        assert list(store.view("ledger").scan()) == list(fresh.view("ledger").scan())
        assert store.load_projection_checkpoint("ledger") == fresh.load_projection_checkpoint("ledger")
        store.append("account-1", [paid(1)])


def test_groups_that_depend_on_each_other_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path / "p.db") as store:
        fill(store, 20)
        runner = ProjectionRunner(store, spark)
        before = kept(store)
        with pytest.raises(Invalid) as refused:
            runner.catch_up_persistent(Sums())
        assert refused.value.code == "projection.groups"
        assert "key(event)" in str(refused.value.next_step)
        with pytest.raises(Invalid) as refused:
            runner.catch_up_persistent(InTables())
        assert refused.value.code == "projection.sql-on-spark"
        assert kept(store) == before


def test_keys_and_objects_that_executors_cannot_use(spark: SparkSession, tmp_path: Path) -> None:
    class NoKey(Ledger):
        def key(self, event: Event) -> Any:
            return None if event.position == 7 else event.stream

    class Locked(Ledger):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    class Volatile(Ledger):
        is_volatile = True

    with opened(tmp_path / "p.db") as store:
        fill(store, 20)
        runner = ProjectionRunner(store, spark)
        for projection, code in (
            (NoKey(), "projection.key"),
            (Locked(), "projection.pickle"),
            (Volatile(), "projection.volatile"),
        ):
            with pytest.raises(Invalid) as refused:
                runner.catch_up_persistent(projection)
            assert refused.value.code == code
        assert kept(store)["standing"] == []
    with open_projections("memory://") as memory, pytest.raises(Invalid, match="memory of this process"):
        ProjectionRunner(memory, spark)


@pytest.mark.parametrize("deaths", [1, ATTEMPTS])
def test_an_executor_that_dies_changes_nothing(spark: SparkSession, tmp_path: Path, deaths: int) -> None:
    """A task is tried again, and again; when Spark gives up, so does the batch, and the next one does it all."""

    class Deadly(Ledger):
        def handle(self, event: Event, view: View) -> None:
            died = len(list(tmp_path.glob("died-*")))
            if event.position == 13 and died < deaths:
                (tmp_path / f"died-{died}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            super().handle(event, view)

    with opened(tmp_path / "p.db") as store, opened(tmp_path / "fresh.db") as fresh:
        fill(store, 30)
        fill(fresh, 30)
        runner = ProjectionRunner(store, spark)
        if deaths == ATTEMPTS:
            with pytest.raises(Unavailable, match="Spark failed in a batch"):
                runner.catch_up_persistent(Deadly())
            assert kept(store)["standing"] == []
        runner.catch_up_persistent(Deadly())
        assert len(list(tmp_path.glob("died-*"))) == deaths
        in_process(fresh, Ledger())
        assert kept(store) == kept(fresh)


def test_events_of_a_group_come_in_the_order_of_the_log(spark: SparkSession) -> None:
    rows = [(f"stream-{position % 3}", position, b"") for position in range(30, 0, -1)]
    events = spark.createDataFrame(rows, "stream string, position bigint, record binary")
    found = in_groups(events, Ledger(), 2).rdd.glom().collect()
    assert sum(map(len, found)) == 30
    for partition in found:
        places = [(bytes(row["grouped_by"]), row["position"]) for row in partition]
        assert places == sorted(places)


def test_a_group_tells_what_it_has_read_and_written() -> None:
    kv = MemoryStore("", keys.SCHEMA)
    prefix = keys.of_build(b"p", 1)
    with kv.begin() as transaction:
        transaction.write({"views": dict.fromkeys([prefix + key for key in (b"a", b"b/1", b"b/2", b"c")], b"old")})
    view = GroupView(kv, b"p", 1)
    assert (view.get(b"a"), view.get(b"c"), view.get(b"none")) == (b"old", b"old", None)
    view.put(b"c", b"new")
    view.delete(b"b/1")
    assert list(view.scan(b"b/")) == [(b"b/2", b"old")]
    assert view.get(b"b/1") is None
    view.accept()
    view.get(b"seen by an event that fails")
    view.put(b"d", b"of an event that fails")
    view.undo()
    part = GroupResult()
    assert view.report(b"group", part) == 7
    assert (part.keys, part.values, part.writers) == ([b"c", b"b/1"], [b"new", None], [b"group"] * 2)
    assert sorted(key for _, key in part.reads) == [b"a", b"none", b"seen by an event that fails"]
    assert part.scans == [(b"group", b"b/")]
    again = GroupResult()
    assert view.report(b"next", again) == 0
    assert again == GroupResult()
    assert view.get(b"c") == b"old"
    assert GroupView(kv, b"empty", 1).get(b"c") is None


TRACK = state.live_build("p")


def touched(
    group: bytes, written: list[bytes], reads: Sequence[bytes] = (), scans: Sequence[bytes] = ()
) -> GroupResult:
    return GroupResult(
        keys=written,
        values=[None] * len(written),
        writers=[group] * len(written),
        reads=[(group, key) for key in reads],
        scans=[(group, prefix) for prefix in scans],
    )


@pytest.mark.parametrize(
    ("one", "other", "are_refused"),
    [
        (touched(b"1", [b"a"]), touched(b"2", [b"b"]), False),
        (touched(b"1", [b"a", b"b"]), touched(b"2", [b"c", b"b"]), True),
        (touched(b"1", [b"a"]), touched(b"2", [], [b"a"]), True),
        (touched(b"1", [b"b"], [b"a"]), touched(b"2", [b"c"], [b"a"]), False),
        (touched(b"1", [b"a/1"]), touched(b"2", [], [], [b"a/"]), True),
        (touched(b"1", [b"a/1"]), touched(b"2", [], [], [b""]), True),
        (touched(b"1", [b"a/1"], [], [b"a/"]), touched(b"2", [b"b/1"], [], [b"b/", b"c"]), False),
        (touched(b"1", [b"a0"]), touched(b"2", [], [], [b"a/"]), False),
    ],
)
@pytest.mark.parametrize("in_one_part", [False, True])
def test_which_groups_depend_on_each_other(
    one: GroupResult, other: GroupResult, are_refused: bool, in_one_part: bool
) -> None:
    for first, second in ((one, other), (other, one)):
        parts = [first, second]
        if in_one_part:
            pairs = zip(*(msgspec.structs.astuple(part)[1:6] for part in parts), strict=True)
            parts = [GroupResult(0, *(left + right for left, right in pairs))]
        merged = MergedResult(TRACK)
        expected = pytest.raises(Invalid, match="depends on their order") if are_refused else contextlib.nullcontext()
        with expected:
            for part in parts:
                merged.add(part)
            merged.check()


def test_spans_of_a_stream_in_several_groups() -> None:
    merged = MergedResult(TRACK)
    merged.add(GroupResult(spans=[StreamRange("a", 3, 5, 9, 20), StreamRange("b", 0, 1, 1, 10)]))
    with pytest.raises(Invalid) as refused:
        merged.cursors()
    assert refused.value.code == "cursor.gap"
    merged.add(GroupResult(spans=[StreamRange("a", 3, 4, 6, 15)]))
    assert merged.cursors() == {"a": 9, "b": 1}


@pytest.mark.crash
@pytest.mark.slow
def test_killed_at_every_step(spark: SparkSession, tmp_path: Path) -> None:
    """Of the attempts at an event that is put aside: the count survives, nothing is handled twice or missing."""
    events = tmp_path / "events.db"
    with opened(events) as store:
        fill(store, 29, bad=29)
    folds = {position: fold(events, position) for position in (28, 29)}
    before = tmp_path / "fold-28.db"
    seen: list[str] = []
    with opened(copied(before, "recorded.db")) as store:
        stop = observe(lambda name, phase, _: seen.append(f"{name} {phase}"))
        projection_lives.catch_up(store, spark)
        stop()
        assert kept(store) == folds[29]
    assert seen[1] == "projection.handle end"
    names = [copied(before, f"{number:02}.db").name for number in range(len(seen))]
    held_at = {name: number for number, name in enumerate(names)}
    lives = Path(projection_lives.__file__)
    run = kill_at(f"{lives}:held_together", projection_lives.ALL_HELD, timeout=240, root=str(tmp_path), held_at=held_at)
    assert run.killed
    assert sorted(run.acknowledged) == [f"{name} {event}" for name, event in zip(names, seen, strict=True)]
    counted, committed = (at for at, event in enumerate(seen) if event == "sqlite.commit end")
    for number, name in enumerate(names):
        with opened(tmp_path / name) as store:
            assert kept(store) == folds[28 if number < committed else 29]
            found = state.read(store.kv, state.live_build("ledger").key, store.address)
            assert found is not None
            assert (found.failed is not None) == (counted <= number < committed)
            if number % 3 == 0 or number in (
                counted,
                committed,
            ):  # what comes before one of these is the same to a start
                projection_lives.catch_up(store, spark)
                assert kept(store) == folds[29]


def fold(untouched: Path, position: int) -> dict[str, Any]:
    """What one process makes of the events up to a position, from the first one."""
    with opened(copied(untouched, f"fold-{position}.db")) as store:
        if position:
            InProcess(store, on_error=LETTERS).catch_up_persistent(Ledger(), until=position)
        return kept(store)
