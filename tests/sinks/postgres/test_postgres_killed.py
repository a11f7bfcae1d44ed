"""Committing through crashes of the server, of the line to it, and of the driver. No Spark."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_hands import ROWS, ask, at, commits, opened, rows, stage, staging_tables, wait_until
from postgres_line import Line

from holdfast.base.steps import observe
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import SinkProgress
from holdfast.testing.faults.crash import CrashRing
from servers.postgres import PostgresServer

pytestmark = pytest.mark.usefixtures("by_hand")
WORK = f"{Path(__file__).with_name('postgres_works.py')}:run"


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
