"""Committing through crashes of the driver, of the server and of the line between them. No Spark."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_hands import SIMPLE, ask, at, opened, stage, staging_tables, wait_until
from postgres_line import Line

from holdfast.base.steps import observe
from holdfast.errors import Invalid, OutcomeUnknown, Unavailable
from holdfast.sinks.postgres import stage as postgres_loading
from holdfast.sinks.postgres import staging_table as postgres_staging
from holdfast.sinks.postgres.copy_task import CopyTask
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.postgres.sql import copy_into
from holdfast.sinks.postgres.table import TableName
from holdfast.sinks.sink import RowsRefused, SinkProgress, StagedOutputGone
from holdfast.testing.faults.crash import CrashRing
from servers.postgres import PostgresServer

pytestmark = pytest.mark.usefixtures("by_hand")

WORK = f"{Path(__file__).with_name('postgres_works.py')}:run"
ROWS = [(1, "one"), (2, "two"), (3, "three")]


def rows(dsn: str) -> list[Any]:
    return ask(dsn, "SELECT id, name FROM out ORDER BY id, name")


def commits(dsn: str) -> list[Any]:
    return ask(dsn, "SELECT pipeline, sink, lineage, epoch, generation, target, row_count FROM holdfast_commits")


def test_the_commit_row_says_what_was_done(dsn: str) -> None:
    sink = opened(dsn)
    sink.commit(stage(sink, ROWS, at(1)), at(1))
    assert commits(dsn) == [("orders", "out", 0, 1, 1, '"public"."out"', 3)]


def test_a_losing_attempt_never_counts(dsn: str) -> None:
    """One that failed, and one that is still at it when the epoch is staged."""
    sink = opened(dsn, key="id")
    descriptor = stage(sink, ROWS, at(1))
    assert len(descriptor["winners"]) == 1
    names = ["id", "name"]
    loser = CopyTask(dsn, copy_into(TableName("public", descriptor["staged"]), names).as_string(None), names)
    late = pa.RecordBatch.from_arrays([pa.array([1, 9]), pa.array(["lost", "lost"])], names=["id", "name"])
    assert loser.copy([late], 99)[0] == 2
    assert ask(dsn, f"SELECT count(*) FROM {descriptor['staged']}") == [5]
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


def test_a_losing_attempt_is_no_duplicate(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are in the staging table when the keys are checked."""
    first = postgres_loading._run

    def with_a_loser(frame: Any, task: CopyTask, place: Any) -> list[Any]:
        task.copy([frame.batch], 99)
        return first(frame, task, place)

    monkeypatch.setattr(postgres_loading, "_run", with_a_loser)
    sink = opened(dsn, key="id")
    sink.commit(stage(sink, ROWS, at(1)), at(1))
    assert rows(dsn) == ROWS


def test_staged_rows_that_somebody_removed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = postgres_loading._run

    def with_a_loss(frame: Any, task: CopyTask, place: Any) -> list[Any]:
        outcomes = first(frame, task, place)
        (table,) = staging_tables(dsn)
        ask(dsn, f"DELETE FROM {table} WHERE id = 2")
        return outcomes

    monkeypatch.setattr(postgres_loading, "_run", with_a_loss)
    with pytest.raises(Unavailable, match="2 rows of the 3"):
        stage(opened(dsn), ROWS, at(1))
    assert staging_tables(dsn) == []


def test_two_pipelines_that_write_the_same_keys_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In opposite orders, and no deadlock."""
    monkeypatch.setattr(postgres_loading, "_run", _one_task)
    ids = list(range(1, 200))
    sinks = {name: opened(dsn, key="id") for name in ("a", "b")}
    for name, sink in sinks.items():
        sink.prepare(SIMPLE, at(0, pipeline=name))
    for epoch in range(1, 4):
        staged = {}
        for name, sink in sinks.items():
            to = at(epoch, pipeline=name)
            given = [(n, name) for n in (ids if name == "a" else reversed(ids))]
            staged[name] = (to, stage(sink, given, to))
        together = threading.Barrier(2)

        def commit(name: str, staged: dict[str, Any] = staged, together: threading.Barrier = together) -> None:
            to, descriptor = staged[name]
            together.wait()
            sinks[name].commit(descriptor, to)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(commit, sinks))
    assert len(rows(dsn)) == len(ids)
    assert len(ask(dsn, "SELECT DISTINCT name FROM out")) == 1


def _one_task(frame: Any, task: CopyTask, place: Any) -> list[Any]:
    count, refusal = task.copy([frame.batch], 1)
    assert refusal is None
    return [SimpleNamespace(attempt=1, row_count=count, refused=None)]


def test_synchronous_commit_is_on(dsn: str) -> None:
    """Whatever the database is set to: a trigger on the target tells."""
    ask(dsn, "CREATE TABLE out (id bigint, name text); CREATE TABLE seen (setting text)")
    ask(
        dsn,
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$; "
        "CREATE TRIGGER t AFTER INSERT ON out FOR EACH STATEMENT EXECUTE FUNCTION tell()",
    )
    name = ask(dsn, "SELECT current_database()")[0]
    sink = opened(dsn)
    for setting, expected in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        ask(dsn, f"ALTER DATABASE {name} SET synchronous_commit = {setting}; TRUNCATE seen")
        epoch = len(commits(dsn)) + 1
        sink.commit(stage(sink, [(1, "x")], at(epoch)), at(epoch))
        assert ask(dsn, "SELECT setting FROM seen") == [expected]


def test_a_strict_default_isolation_does_not_matter(dsn: str) -> None:
    sink = opened(dsn)
    name = ask(dsn, "SELECT current_database()")[0]
    ask(dsn, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    descriptor = stage(sink, ROWS, at(1))
    together = threading.Barrier(4)

    def commit(generation: int) -> None:
        mine = PostgresSink(dsn, "out")
        together.wait()
        mine.commit(descriptor, at(1, generation=generation))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(commit, range(4)))
    assert rows(dsn) == ROWS


def test_what_the_target_does_not_take_any_more(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    ask(dsn, "ALTER TABLE out ADD CHECK (id < 3)")
    with pytest.raises(RowsRefused) as caught:
        sink.commit(descriptor, at(1))
    assert descriptor["staged"] in (caught.value.next_step or "")
    assert rows(dsn) == []
    ask(dsn, "ALTER TABLE out DROP CONSTRAINT out_id_check")
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


def test_a_target_that_is_gone(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    ask(dsn, "ALTER TABLE out RENAME TO away")
    for attempt in (lambda: sink.commit(descriptor, at(1)), lambda: stage(sink, ROWS, at(1))):
        with pytest.raises(Invalid) as caught:
            attempt()
        assert caught.value.next_step
    ask(dsn, "ALTER TABLE away RENAME TO out")
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


def test_descriptors_that_name_something_else(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    ask(dsn, "CREATE TABLE precious (id bigint)")
    for change in ({"staged": "precious"}, {"kind": "files"}, {"winners": "all"}, {"table": "precious"}):
        for act in (sink.commit, sink.rollback):
            with pytest.raises(Invalid):
                act(descriptor | change, at(1))
    assert ask(dsn, "SELECT count(*) FROM precious") == [0]


def test_a_task_that_still_copies_does_not_hold_up_a_commit(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_staging, "LOCK_TIMEOUT", "50ms")
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    with psycopg.connect(dsn) as straggler:
        straggler.execute(f"INSERT INTO {descriptor['staged']} (id, holdfast_attempt) VALUES (9, 9)".encode())
        sink.commit(descriptor, at(1))
        assert "left for the next driver" in caplog.text
        sink.recover(at(1, generation=2), None)
        assert staging_tables(dsn) == [descriptor["staged"]]
    assert rows(dsn) == ROWS
    sink.recover(at(1, generation=2), None)
    assert staging_tables(dsn) == []
    assert rows(dsn) == ROWS


def test_recover_leaves_alone_what_is_not_ours(dsn: str) -> None:
    sink = opened(dsn)
    theirs = "holdfast_staged_" + "0" * 32
    ask(dsn, f"CREATE TABLE {theirs} (id bigint); CREATE TABLE holdfast_staged_odd (id bigint)")
    ask(
        dsn, f"CREATE TABLE holdfast_staged_{'1' * 32} (id bigint); COMMENT ON TABLE holdfast_staged_{'1' * 32} IS '[]'"
    )
    stage(sink, ROWS, at(1))
    stage(sink, ROWS, at(1, pipeline="another"))
    mine, newer = stage(sink, ROWS, at(1, generation=2)), stage(sink, ROWS, at(1, generation=3))
    sink.recover(at(0, generation=2), None)
    assert {mine["staged"], newer["staged"]} <= set(staging_tables(dsn))
    assert len(staging_tables(dsn)) == 6
    PostgresSink(dsn, "out").recover(at(0, generation=2, pipeline="another"), None)
    assert len(staging_tables(dsn)) == 5


def test_before_anything_was_prepared(dsn: str) -> None:
    assert PostgresSink(dsn, "out").recover(at(0), None) == SinkProgress()
    assert PostgresSink(dsn, "nowhere.out").recover(at(0), None) == SinkProgress()


# The server is killed


def test_staged_rows_survive_the_server(pg_server: PostgresServer, dsn: str) -> None:
    sink = opened(dsn, key="id")
    descriptor = stage(sink, ROWS, at(1))
    pg_server.kill()
    try:
        with pytest.raises(Unavailable):
            sink.commit(descriptor, at(1))
        with pytest.raises(Unavailable):
            sink.recover(at(1), None)
    finally:
        pg_server.start()
    assert sink.recover(at(1, generation=2), descriptor) == SinkProgress()
    sink.commit(descriptor, at(1, generation=2))
    assert rows(dsn) == ROWS
    pg_server.kill()
    pg_server.start()
    assert rows(dsn) == ROWS
    sink.commit(descriptor, at(1, generation=2))
    assert rows(dsn) == ROWS
    assert staging_tables(dsn) == []


@pytest.mark.parametrize(("name", "phase"), [("postgres.merge", "begin"), ("postgres.merge", "end")])
def test_server_killed_before_the_commit_is_sent(name: str, phase: str, pg_server: PostgresServer, dsn: str) -> None:
    sink = opened(dsn, key="id")
    descriptor = stage(sink, ROWS, at(1))
    stop = observe(lambda step, at, _: pg_server.kill() if (step, at) == (name, phase) else None)
    try:
        with pytest.raises((Unavailable, OutcomeUnknown)):
            sink.commit(descriptor, at(1))
    finally:
        stop()
        pg_server.start()
    assert rows(dsn) == []
    assert commits(dsn) == []
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


BLOCKING = """
CREATE FUNCTION block() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN IF pg_try_advisory_xact_lock(1) THEN RETURN NULL; END IF; PERFORM pg_advisory_xact_lock(1); RETURN NULL; END$$;
CREATE CONSTRAINT TRIGGER b AFTER INSERT ON holdfast_commits DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION block()"""


@contextlib.contextmanager
def blocked_in_commit(dsn: str, act: Callable[[], None]) -> Iterator[tuple[int, list[BaseException]]]:
    """Run `act` until its COMMIT waits within the server; yields that process and, after the block, what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    with psycopg.connect(dsn, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        thread.start()
        waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: ask(dsn, waiting))
        try:
            yield ask(dsn, waiting)[0], raised
        finally:
            if not holder.broken:
                with contextlib.suppress(psycopg.Error):
                    holder.execute("SELECT pg_advisory_unlock(1)")
            thread.join()


def test_server_killed_during_commit(pg_server: PostgresServer, dsn: str) -> None:
    sink = opened(dsn, key="id")
    ask(dsn, BLOCKING)
    descriptor = stage(sink, ROWS, at(1))
    with blocked_in_commit(dsn, lambda: sink.commit(descriptor, at(1))) as (_, raised):
        pg_server.kill()
        wait_until(lambda: raised)
        pg_server.start()
    assert [type(error) for error in raised] == [OutcomeUnknown]
    assert "commit again" in str(raised[0])
    assert rows(dsn) == []
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS
    assert staging_tables(dsn) == []


def test_connection_ended_during_commit_is_settled(dsn: str) -> None:
    """The server goes on: committing again finds that nothing was committed, and does it."""
    sink = opened(dsn, key="id")
    ask(dsn, BLOCKING)
    descriptor = stage(sink, ROWS, at(1))
    with blocked_in_commit(dsn, lambda: sink.commit(descriptor, at(1))) as (pid, raised):
        ask(dsn, f"SELECT pg_terminate_backend({pid})")
        wait_until(lambda: not ask(dsn, f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
    assert raised == []
    assert rows(dsn) == ROWS
    assert len(commits(dsn)) == 1


def test_a_commit_that_is_still_under_way_is_waited_for(dsn: str) -> None:
    """Two drivers, the first inside COMMIT: the second neither fails nor merges again."""
    sink, other = opened(dsn), PostgresSink(dsn, "out")
    ask(dsn, BLOCKING)
    descriptor, second = stage(sink, ROWS, at(1)), stage(other, ROWS, at(1, generation=2))
    done = threading.Event()

    def commit() -> None:
        other.commit(second, at(1, generation=2))
        done.set()

    later = threading.Thread(target=commit)
    with blocked_in_commit(dsn, lambda: sink.commit(descriptor, at(1))) as (pid, raised):
        later.start()
        wait_until(lambda: ask(dsn, f"SELECT 1 FROM pg_stat_activity WHERE {pid} = ANY(pg_blocking_pids(pid))"))
        assert not done.is_set()
    later.join()
    assert raised == []
    assert rows(dsn) == ROWS
    assert staging_tables(dsn) == []


@pytest.fixture
def line(pg_server: PostgresServer) -> Iterator[Line]:
    line = Line(pg_server.folder)
    yield line
    line.close()


def test_a_lost_reply_to_commit_is_settled(dsn: str, line: Line, pg_server: PostgresServer) -> None:
    descriptor = stage(opened(dsn), ROWS, at(1))
    sink = PostgresSink(dsn.replace(str(pg_server.folder), line.folder), "out")
    line.cuts = 1
    sink.commit(descriptor, at(1))
    assert (line.cuts, line.commits) == (0, 2)
    assert rows(dsn) == ROWS
    assert len(commits(dsn)) == 1


def test_a_lost_reply_that_cannot_be_settled(dsn: str, line: Line, pg_server: PostgresServer) -> None:
    descriptor = stage(opened(dsn), ROWS, at(1))
    sink = PostgresSink(dsn.replace(str(pg_server.folder), line.folder), "out")
    line.cuts = 2
    with pytest.raises(OutcomeUnknown) as caught:
        sink.commit(descriptor, at(1))
    assert caught.value.next_step
    assert rows(dsn) == ROWS
    sink.commit(descriptor, at(1))
    assert rows(dsn) == ROWS


# The driver is killed


@pytest.fixture(scope="module")
def ring() -> Iterator[CrashRing]:
    with CrashRing(WORK) as ring:
        yield ring


@pytest.mark.crash
@pytest.mark.parametrize("work", ["commit", "rollback", "recover"])
def test_driver_killed_at_every_step(work: str, pg_server: PostgresServer, ring: CrashRing) -> None:
    def prepared() -> tuple[str, dict[str, Any]]:
        dsn = pg_server.new_database()
        sink = opened(dsn, key="id")
        sink.commit(stage(sink, [(1, "old"), (9, "nine")], at(1)), at(1))
        stage(sink, [(7, "left behind")], at(2))
        return dsn, stage(sink, ROWS, at(2))

    dsn, descriptor = prepared()
    events = ring.record(work=work, dsn=dsn, descriptor=descriptor, epoch=2)
    expected = {"commit": ["postgres.merge", "postgres.commit"]}.get(work, ["postgres.drop"])
    assert [event.name for event in events if event.phase == "begin"] == expected
    for index, event in enumerate(events):
        dsn, descriptor = prepared()
        run = ring.kill_at(index, work=work, dsn=dsn, descriptor=descriptor, epoch=2)
        assert (run.killed, run.event) == (True, event)
        before, after = [(1, "old"), (9, "nine")], [*ROWS, (9, "nine")]
        done = event == ("postgres.commit", "end")
        assert rows(dsn) == (after if done else before)
        sink = PostgresSink(dsn, "out", "id")
        standing = sink.recover(at(2, generation=3), descriptor)
        assert standing == SinkProgress(committed=2 if done else 1, lineage=0)
        for _ in range(2):
            if work == "rollback":
                sink.rollback(descriptor, at(2, generation=3))
            else:
                sink.commit(descriptor, at(2, generation=3))
        assert rows(dsn) == (before if work == "rollback" else after)
        assert len(commits(dsn)) == (1 if work == "rollback" else 2)
        assert staging_tables(dsn) == []


def test_gone_and_not_committed(dsn: str) -> None:
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    sink.recover(at(0, generation=2), None)
    with pytest.raises(StagedOutputGone) as caught:
        sink.commit(descriptor, at(1))
    assert "stage" in (caught.value.next_step or "")
    assert commits(dsn) == []
