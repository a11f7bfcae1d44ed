"""What is SQLite's own: processes side by side, durability, other people's files, tables of one's own."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Corrupt, Invalid, Unavailable
from holdfast.projections import (
    Append,
    Event,
    OnError,
    Projection,
    ProjectionRunner,
    ProjectionWorker,
    View,
    open_projections,
)
from holdfast.projections.state import begin
from holdfast.storage.kv import sqlite_reader
from holdfast.storage.kv.sqlite import SqliteStore
from holdfast.testing.conformance.projections.subject import Turnover, contents, fresh_fold, paid


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/new/dirs/p.db"


def run(program: str, url: str) -> subprocess.Popen[str]:
    start = (
        f"import sys; sys.path[:] = {sys.path!r}; url = {url!r}\n"
        "from holdfast.projections import *\n"
        "from holdfast.errors import *\n"
        "from holdfast.testing.conformance.projections.subject import Turnover, paid\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", start + textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    [out] = all_ended([process])
    return out


def all_ended(processes: list[subprocess.Popen[str]]) -> list[str]:
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


def test_it_is_durable(url: str) -> None:
    with open_projections(url) as store:
        assert isinstance(store.kv, SqliteStore)
        with store.kv.begin() as transaction:
            assert transaction.execute("PRAGMA journal_mode") == [("wal",)]
            assert transaction.execute("PRAGMA synchronous") == [(2,)]


def test_processes_append_and_project_side_by_side(url: str) -> None:
    """Positions without gaps, each event in the read model once, and the loser of a race retries."""
    writing = """
        store = open_projections(url)
        for number in range(40):
            while True:
                try:
                    store.append("shared", [paid(1)], expected=store.stream_version("shared"))
                    break
                except Conflict:
                    pass
            store.append(f"own-{number % 5}", [paid(1)])
        """
    projecting = """
        store = open_projections(url)
        handled = 0
        while store.position < 240:
            handled += ProjectionRunner(store, batch=5).catch_up_persistent(Turnover()).handled
        handled += ProjectionRunner(store, batch=5).catch_up_persistent(Turnover()).handled
        print(handled)
        """
    open_projections(url).close()
    writers = [run(writing, url) for _ in range(3)]
    runners = [run(projecting, url) for _ in range(2)]
    assert sum(map(int, all_ended([*writers, *runners])[3:])) == 240
    with open_projections(url) as store:
        assert [event.position for event in store.read_all()] == list(range(1, 241))
        assert [event.sequence for event in store.read_stream("shared")] == list(range(1, 121))
        assert contents(store) == fresh_fold(store)


def test_processes_that_make_it_at_the_same_time(url: str) -> None:
    program = """
        print("ready", flush=True)
        sys.stdin.read(1)
        open_projections(url).append("a", [paid(1)])
        """
    processes = [run(program, url) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
    all_ended(processes)
    with open_projections(url) as store:
        assert store.stream_version("a") == 4


def test_a_worker_that_is_killed_is_followed_by_the_one_that_waits(url: str) -> None:
    program = """
        store = open_projections(url)
        worker = ProjectionWorker(ProjectionRunner(store), [Turnover()], tick=0.01, lease=1.0)
        import threading
        threading.Thread(target=worker.run).start()
        store.wait_for("turnover", 1, timeout=30)
        print("working", flush=True)
        """
    with open_projections(url) as store:
        store.append("a", [paid(1)])
        first = run(program, url)
        assert first.stdout is not None
        assert first.stdout.readline() == "working\n"
        second = ProjectionWorker(ProjectionRunner(store), [Turnover()], lease=1.0)
        second.turn()
        assert second.health().projections["turnover"].state == "waiting"
        first.send_signal(signal.SIGKILL)
        first.communicate()
        store.append("a", [paid(2)])
        while second.health().projections["turnover"].state == "waiting":
            second.turn()
        assert second.health().projections["turnover"].state == "idle"
        assert contents(store) == fresh_fold(store)


def test_somebody_writes_for_too_long(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sqlite_reader.PATIENCE, "shared", 0.05)
    with open_projections(url) as store:
        other = sqlite3.connect(tmp_path / "new/dirs/p.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable) as caught:
            store.append("a", [paid(1)])
        assert caught.value.code == "store.unavailable"
        assert store.position == 0  # reading never waits
        other.execute("COMMIT")
        other.close()
        store.append("a", [paid(1)])


def test_other_peoples_databases(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(Invalid) as caught:
        open_projections(f"sqlite:///{path}")
    assert caught.value.code == "store.foreign"
    assert path.read_bytes() == before


def test_a_newer_release(url: str, tmp_path: Path) -> None:
    open_projections(url).close()
    other = sqlite3.connect(tmp_path / "new/dirs/p.db")
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(Invalid) as caught:
        open_projections(url)
    assert caught.value.code == "store.newer"


def test_what_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(Corrupt):
        open_projections(f"sqlite:///{path}")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable):
        open_projections(f"sqlite:///{tmp_path}/file/p.db")


def test_a_forked_child_leaves_the_parents_store_alone(url: str) -> None:
    with open_projections(url) as store:
        store.append("a", [paid(1)])
        transaction = begin(store.kv)
        assert transaction.get("meta", b"none") is None  # from here on it has the store to itself
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.append("a", [paid(2)])
            except Invalid:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        transaction.rollback()
        store.append("a", [paid(3)], expected=1)
        assert [event.json()["cents"] for event in store.read_all()] == [1, 3]


class Sql(Projection):
    """Whatever the test wants, by SQL."""

    name = "sql"

    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def handle(self, event: Event, view: View) -> None:
        view.execute(f"CREATE TABLE IF NOT EXISTS {view.table('t')} (k PRIMARY KEY, v)")
        for step in self.steps:
            step(event, view)


def test_a_handler_with_a_transaction_cannot_append(url: str) -> None:
    with open_projections(url) as store:
        store.append("a", [paid(1)])
        with pytest.raises(Invalid) as caught:
            ProjectionRunner(store).catch_up_persistent(Sql(lambda *_: store.append("b", [paid(1)])))
        assert isinstance(caught.value.__cause__, Invalid)
        assert caught.value.__cause__.code == "transaction.nested"
        assert store.position == 1
        store.append("b", [paid(1)])


def test_a_statement_that_fails_is_the_events_fault(url: str) -> None:
    def insert(event: Event, view: View) -> None:
        view.execute(f"INSERT INTO {view.table('t')} VALUES (?, ?)", (event.json()["cents"], event.position))

    with open_projections(url) as store:
        store.append("a", [paid(1), paid(2), paid(1), paid(3)])
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"))
        done = runner.catch_up_persistent(Sql(insert))
        assert (done.handled, done.dead_lettered) == (3, 1)
        rows = store.view("sql").query(lambda table: f"SELECT * FROM {table('t')} ORDER BY k")
        assert rows == [(1, 1), (2, 2), (3, 4)]
        assert "UNIQUE" in store.dead_letters("sql")[0].error


def insert_or_roll_back(event: Event, view: View) -> None:
    with contextlib.suppress(sqlite3.IntegrityError, Invalid):  # swallows whatever it is told
        row = (event.json()["cents"], event.position)
        view.execute(f"INSERT OR ROLLBACK INTO {view.table('t')} VALUES (?, ?)", row)


def test_a_statement_that_ends_the_transaction_commits_no_cursor(url: str) -> None:
    with open_projections(url) as store:
        store.append("a", [paid(1), paid(2), paid(1), paid(3)])
        for _ in range(2):
            with pytest.raises(Invalid, match="INSERT OR ROLLBACK"):
                ProjectionRunner(store).catch_up_persistent(Sql(insert_or_roll_back))
            assert store.projections() == []
        store.append("b", [paid(1)])


@pytest.mark.parametrize("words", ["COMMIT", " end;", "-- so\n/* it */ ROLLBACK", "savepoint a", "begin"])
def test_transactions_are_not_for_handlers(url: str, words: str) -> None:
    with open_projections(url) as store:
        store.append("a", [paid(1), paid(2)])
        with pytest.raises(Invalid) as caught:
            ProjectionRunner(store).catch_up_persistent(Sql(lambda _, view: view.execute(words)))
        assert isinstance(caught.value.__cause__, Invalid)
        assert caught.value.__cause__.code == "projection.sql-transaction"
        assert store.projections() == []


def test_names_that_differ_in_capitals_have_tables_of_their_own(url: str) -> None:
    class Upper(Sql):
        name = "SQL"

    def insert(event: Event, view: View) -> None:
        view.execute(f"INSERT INTO {view.table('t')} VALUES (?, 1)", (event.position,))

    def rows(name: str) -> list[tuple[Any, ...]]:
        return store.view(name).query(lambda table: f"SELECT k FROM {table('t')}")

    with open_projections(url) as store:
        store.append("a", [paid(1), paid(2)])
        runner = ProjectionRunner(store)
        for projection in (Sql(insert), Upper(insert)):
            runner.catch_up_persistent(projection)
        assert rows("sql") == rows("SQL") == [(1,), (2,)]
        runner.reset("SQL")
        assert rows("sql") == [(1,), (2,)]


def test_interrupted_while_it_waits_for_the_write_lock(url: str) -> None:
    """The signal is told of when SQLite has got the lock: it must not keep it."""
    program = """
        import os, signal, sqlite3, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
        store = open_projections(url)
        store.append("a", [paid(1)])
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        begun = threading.Event()
        class Writer:
            def __init__(self, real): self.real = real
            def __getattr__(self, name): return getattr(self.real, name)
            def execute(self, sql, *arguments):
                begun.set()
                return self.real.execute(sql, *arguments)
        store.kv._writer = Writer(store.kv._writer)
        def interrupt():
            begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
            other.execute("ROLLBACK")
        threading.Thread(target=interrupt).start()
        try:
            store.append("a", [paid(1)])
        except KeyboardInterrupt:
            print("interrupted")
        other.execute("PRAGMA busy_timeout = 1000")
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        print(store.append("a", [paid(1)])[0].sequence)
        """
    assert ended(run(program, url)) == "interrupted\n2\n"


def test_reading_by_sql_cannot_write(url: str) -> None:
    with open_projections(url) as store:
        store.append("a", [paid(1)])
        ProjectionRunner(store).catch_up_persistent(Sql())
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            store.view("sql").query(lambda table: f"DELETE FROM {table('t')}")


def test_cursors_written_as_sqlite_counts_them(url: str, tmp_path: Path) -> None:
    """Rows that really changed in the file, by a trigger of our own."""
    with open_projections(url) as store:
        store.append_many([Append(f"order-{number}", [paid(1)]) for number in range(300)])
        ProjectionRunner(store).catch_up_persistent(Turnover())
        spy = sqlite3.connect(tmp_path / "new/dirs/p.db", isolation_level=None)
        spy.execute("CREATE TABLE touched (key)")
        for action in ("INSERT", "UPDATE"):
            spy.execute(
                f"CREATE TRIGGER on_{action} AFTER {action} ON holdfast_cursors "
                "BEGIN INSERT INTO touched VALUES (new.key); END"
            )
        store.append_many([Append(f"order-{number}", [paid(1)]) for number in (7, 70, 299)])
        ProjectionRunner(store).catch_up_persistent(Turnover())
        found = sorted(key for (key,) in spy.execute("SELECT key FROM touched"))
        spy.close()
        assert found == [b"turnover/order-299", b"turnover/order-7", b"turnover/order-70"]
