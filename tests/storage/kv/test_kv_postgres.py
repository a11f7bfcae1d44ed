"""PostgreSQL: addresses, rivals, lost replies, roles, and transactions larger than what is held in memory."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import string
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cut_lines import CutLine, interrupted_at
from psycopg import sql

from holdfast.base.steps import Phase
from holdfast.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, OutcomeUnknown, Unavailable
from holdfast.index.records import SCHEMA
from holdfast.projections import NewEvent, open_projections
from holdfast.projections.keys import SCHEMA as EVENTS
from holdfast.storage.kv import postgres as subject
from holdfast.storage.kv import postgres_reader, postgres_tables
from holdfast.storage.kv.postgres import PostgresStore
from holdfast.storage.kv.postgres_reader import PostgresReader
from holdfast.storage.kv.postgres_server import connect, parse
from holdfast.storage.kv.store import Schema, WriteBatch
from servers.postgres import PASSWORD, PostgresServer

A: WriteBatch = {"results": {b"a": b"1"}, "meta": {b"m": b"1"}}
B: WriteBatch = {"results": {b"b": b"2", b"a": None}, "meta": {b"m": b"2"}}
AFTER_A = [(b"a", b"1"), (b"m", b"1")]
AFTER_B = [(b"b", b"2"), (b"m", b"2")]


def commit(store: PostgresStore, changes: WriteBatch) -> None:
    with store.begin() as transaction:
        transaction.write({space: dict(of_space) for space, of_space in changes.items()})


def contents(store: PostgresStore) -> list[tuple[bytes, bytes]]:
    return [*store.scan("results", b"", None), *store.scan("meta", b"", None)]


@pytest.fixture
def url(kv_dsn: str) -> str:
    return f"{kv_dsn}&index={uuid.uuid4().hex}"


@contextlib.contextmanager
def opened(url: str, **options: Any) -> Iterator[PostgresStore]:
    store = PostgresStore(url, SCHEMA, **options)
    try:
        yield store
    finally:
        store.close()


def ask(url: str, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(parse(url).dsn, autocommit=True) as connection:
        found = connection.execute(query.encode(), arguments)
        return found.fetchall() if found.description else []


# Addresses.


def test_address_is_shown_without_secrets() -> None:
    at = parse("postgresql://me:sec%2Fret@host:5433/shop?application_name=x&index=orders%26more&sslmode=require")
    assert at.shown == "postgresql://host:5433/shop?index=orders&more"
    assert at.name == "orders&more"
    assert at.dsn == "postgresql://me:sec%2Fret@host:5433/shop?application_name=x&sslmode=require"


@pytest.mark.parametrize("end", ["?index=", f"?index={'x' * 201}", "?index=a%0Ab", "?nonsense=secret"])
def test_addresses_that_are_refused_do_not_leak(end: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse("postgresql://me:secret@host" + end)
    assert "secret" not in str(caught.value)


def test_wrong_password_and_no_server(url: str) -> None:
    for wrong in (url.replace(PASSWORD, "wrong-secret"), url.replace("host=/", "host=/nowhere/")):
        with pytest.raises((Invalid, Unavailable)) as caught:
            PostgresStore(wrong, SCHEMA)
        assert "secret" not in str(caught.value)
        assert PASSWORD not in str(caught.value)


# Rivals.


def test_second_opening_fences_the_first(url: str) -> None:
    with opened(url) as first:
        commit(first, A)
        with opened(url) as second:
            for _ in range(2):
                with pytest.raises(Fenced):
                    commit(first, {"meta": {b"stray": b""}})
            commit(second, B)
            assert contents(first) == contents(second) == AFTER_B


def test_opening_waits_for_a_transaction_under_way_and_then_fences(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SPILL_BYTES", 0)
    with opened(url) as first:
        transaction = first.begin()
        transaction.write(dict(A))
        opening = threading.Thread(target=lambda: PostgresStore(url, SCHEMA).close())
        opening.start()
        while not ask(url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            assert opening.is_alive()
        transaction.commit()
        opening.join()
        assert contents(first) == AFTER_A
        with pytest.raises(Fenced):
            commit(first, B)
        assert contents(first) == AFTER_A


def test_opening_beside_a_transaction_that_does_not_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SPILL_BYTES", 0)
    with opened(url) as first:
        transaction = first.begin()
        transaction.write(dict(A))
        monkeypatch.setattr(postgres_tables, "PRELUDE", postgres_tables.PRELUDE.replace("'10s'", "'50ms'"))
        with pytest.raises(Conflict) as caught:
            PostgresStore(url, SCHEMA)
        assert caught.value.code == "index.in-use"
        transaction.commit()
        assert contents(first) == AFTER_A


@pytest.mark.parametrize("size", ["large", "small"])
@pytest.mark.parametrize("schema", [SCHEMA, EVENTS], ids=["index", "store"])
def test_opening_beside_a_process_that_is_frozen_within_its_transaction(
    kv_dsn: str, schema: Schema, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen one's session is ended, and the next gets in; waking up, the frozen one has committed nothing."""
    monkeypatch.setattr(postgres_tables, "PRELUDE", postgres_tables.PRELUDE.replace("'10s'", "'3s'"))
    url = f"{kv_dsn}&{schema.kind}={uuid.uuid4().hex}"
    command = [sys.executable, str(Path(__file__).with_name("postgres_frozen.py")), url, schema.kind, size]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frozen:
        try:
            assert os.WIFSTOPPED(os.waitpid(frozen.pid, os.WUNTRACED)[1])
            with contextlib.closing(PostgresStore(url, schema, idle_timeout="1s")) as second:
                commit(second, {"meta": {b"m": b"2"}})
                frozen.send_signal(signal.SIGCONT)
                # Fenced by the token, unless the server had ended its session before.
                told = ("Unavailable",) if size == "large" else ("Fenced", "Unavailable")
                assert frozen.communicate(timeout=60)[0].startswith(told)
                assert list(second.scan("meta", b"", None)) == [(b"m", b"2")]
        finally:
            frozen.kill()


def test_indexes_of_one_database_are_apart(url: str) -> None:
    with opened(url) as first, opened(url + "x") as second:
        commit(first, A)
        commit(second, B)
        assert contents(first) == AFTER_A
        assert contents(second) == AFTER_B


def test_many_open_a_new_database_at_once(pg_server: PostgresServer) -> None:
    dsn = pg_server.new_database()
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            PostgresStore(f"{dsn}&index={number % 3}", SCHEMA).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert ask(dsn, "SELECT count(*) FROM holdfast.indexes") == [(3,)]


# Replies that are lost.


@pytest.fixture
def cut_line(pg_server: PostgresServer) -> Iterator[CutLine]:
    with CutLine(pg_server.folder / ".s.PGSQL.5432", b"COMMIT\0") as line:
        yield line


@pytest.fixture
def through(url: str, cut_line: CutLine, pg_server: PostgresServer) -> str:
    return url.replace(f"host={pg_server.folder}", f"host=127.0.0.1&port={cut_line.port}")


def test_lost_reply_of_a_commit_that_took_effect(through: str, cut_line: CutLine) -> None:
    with opened(through) as store:
        commit(store, A)
        cut_line.cuts = 1
        commit(store, B)
        assert cut_line.cuts == 0
        assert contents(store) == AFTER_B
        commit(store, A)
        assert store.get("results", b"a") == b"1"


@pytest.mark.parametrize("cut", ["request", "late"])
def test_lost_request_was_not_applied_and_never_will_be(through: str, cut_line: CutLine, cut: Any) -> None:
    """A transaction whose client is gone without a word is ended, or its locks would be in the way for a minute."""
    with opened(through) as store:
        commit(store, A)
        cut_line.cut, cut_line.cuts = cut, 1
        with pytest.raises(Unavailable) as caught:
            commit(store, B)
        assert caught.value.code == "index.not-applied"
        cut_line.deliver()
        assert contents(store) == AFTER_A
        commit(store, B)
        assert contents(store) == AFTER_B


def test_settling_loses_its_own_replies_too(through: str, cut_line: CutLine) -> None:
    with opened(through) as store:
        cut_line.cuts = 4
        commit(store, A)
        assert cut_line.cuts == 0
        commit(store, B)
        assert contents(store) == AFTER_B


@pytest.mark.parametrize("cut", ["reply", "request", "late"])
@pytest.mark.parametrize("phase", ["begin", "end"])
def test_interrupted_while_a_lost_reply_is_settled(through: str, cut_line: CutLine, cut: Any, phase: Phase) -> None:
    """The store is intact, and so is the handle: the next commit finds out what was applied."""
    with opened(through) as store:
        commit(store, A)
        cut_line.cut, cut_line.cuts = cut, 1
        for _ in range(2):
            with interrupted_at("postgres.settle", phase), pytest.raises(KeyboardInterrupt):
                commit(store, B)
        assert contents(store) == (AFTER_B if cut == "reply" else AFTER_A)
        commit(store, B)
        if cut == "late":
            cut_line.deliver()
        assert contents(store) == AFTER_B
        commit(store, A)
        assert store.get("results", b"a") == b"1"


def test_interrupted_while_a_lost_reply_is_settled_and_then_fenced(through: str, cut_line: CutLine) -> None:
    with opened(through) as store:
        cut_line.cuts = 1
        with interrupted_at("postgres.settle", "begin"), pytest.raises(KeyboardInterrupt):
            commit(store, A)
        with opened(through) as rival:
            for _ in range(2):
                with pytest.raises(Fenced):
                    commit(store, B)
            assert contents(rival) == AFTER_A


def test_server_that_stays_away(through: str, cut_line: CutLine) -> None:
    with opened(through, settle_seconds=0.2) as store:
        commit(store, A)
        cut_line.cuts, cut_line.is_down = 1, True
        with pytest.raises(OutcomeUnknown) as caught:
            commit(store, B)
        assert PASSWORD not in str(caught.value)
        with pytest.raises(Unavailable):
            commit(store, A)
        cut_line.is_down = False
        assert contents(store) == AFTER_B


def test_connections_that_the_server_dropped(url: str) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'"
    with opened(url) as store:
        commit(store, A)
        ask(url, end)
        assert store.get("results", b"a") == b"1"
        ask(url, end)
        commit(store, B)
        assert contents(store) == AFTER_B


def test_connection_that_breaks_in_the_middle_of_a_session(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SPILL_BYTES", 0)
    with opened(url) as store:
        commit(store, A)
        transaction = store.begin()
        transaction.write({"meta": {b"stray": b""}})
        ask(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'")
        with pytest.raises(Unavailable):
            transaction.write(B)
        with pytest.raises(Unavailable):
            transaction.commit()  # not the rest alone
        assert contents(store) == AFTER_A
        commit(store, B)
        assert contents(store) == AFTER_B


def test_connection_that_breaks_before_the_commit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SPILL_BYTES", 0)
    with opened(url) as store:
        commit(store, A)
        transaction = store.begin()
        transaction.write(B)
        ask(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'")
        with pytest.raises(Unavailable):
            transaction.commit()
        assert contents(store) == AFTER_A
        commit(store, B)
        assert contents(store) == AFTER_B


def test_interrupted_while_waiting_for_the_reply(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(url) as store:
        commit(store, A)
        execute = psycopg.Connection.execute

        def interrupted(connection: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            found = execute(connection, query, *arguments, **options)
            if query == "COMMIT":
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                commit(store, B)
        assert contents(store) == AFTER_B
        commit(store, A)
        assert store.get("results", b"a") == b"1"


# Transactions.


@pytest.mark.parametrize("schema", [SCHEMA, EVENTS], ids=["index", "store"])
def test_the_longest_key_whatever_it_holds(kv_dsn: str, schema: Schema) -> None:
    """PostgreSQL compresses the entries of an index: what these bytes do not let it do."""
    url = f"{kv_dsn}&{schema.kind}={uuid.uuid4().hex}"
    with contextlib.closing(PostgresStore(url, schema)) as store:
        longest = random.Random(17).randbytes(postgres_tables.MAX_KEY)
        commit(store, {"meta": {longest: b"v"}})
        with pytest.raises(Invalid) as caught:
            commit(store, {"meta": {longest + b"12345678": b"v", b"beside": b""}})
        assert caught.value.code == f"{schema.kind}.key-too-long"
        assert list(store.scan("meta", b"", None)) == [(longest, b"v")]


def test_long_name_of_a_stream_is_refused_in_our_words(kv_dsn: str) -> None:
    with open_projections(f"{kv_dsn}&store={uuid.uuid4().hex}") as store:
        fits = "".join(random.Random(17).choices(string.ascii_letters, k=2600))
        store.append(fits, [NewEvent("paid", {})])
        with pytest.raises(Invalid, match="names of a stream") as caught:
            store.append(fits + fits, [NewEvent("paid", {})])
        assert caught.value.code == "store.key-too-long"
        assert [event.stream for event in store.read_all()] == [fits]


def test_session_larger_than_what_is_held_and_later_changes_win(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SPILL_BYTES", 10_000)
    monkeypatch.setattr(postgres_reader, "PAGE", 7)
    with opened(url) as store:
        transaction = store.begin()
        expected: dict[bytes, bytes] = {}
        for turn in range(20):
            changes: dict[bytes, bytes | None] = {}
            for key in range(turn, 100 + turn):
                value = None if (key + turn) % 3 == 0 else b"%d" % turn * 100
                changes[b"%03d" % key] = value
                expected.pop(b"%03d" % key, None)
                if value is not None:
                    expected[b"%03d" % key] = value
            transaction.write({"results": dict.fromkeys(changes, b"first")})
            transaction.write({"results": changes})
            assert contents(store) == []
        transaction.commit()
        assert contents(store) == sorted(expected.items())
        transaction = store.begin()
        transaction.write({"results": {b"%03d" % key: bytes(500) for key in range(100)}})
        transaction.rollback()
        transaction.commit()
        assert contents(store) == sorted(expected.items())


def test_scan_is_of_one_moment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_reader, "PAGE", 7)
    with opened(url) as store:
        commit(store, {"results": {b"%03d" % key: b"1" for key in range(100)}})
        scan, unread = store.scan("results", b"", None), store.scan("results", b"", None)
        next(scan)
        commit(store, {"results": {b"%03d" % key: None for key in range(1, 100, 2)}})
        assert len(list(scan)) == 99
        assert len(list(unread)) == 50
        left = store.scan("results", b"", None)
        next(left)
    with pytest.raises(Invalid):
        next(left)


@pytest.mark.parametrize("default", ["off", "local", "remote_write"])
def test_commits_are_durable_whatever_the_default_is(
    pg_server: PostgresServer, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "SPILL_BYTES", 0)
    url = f"{pg_server.new_database()}&index=i"
    database = parse(url).dsn.split("?")[0].rpartition("/")[2]
    ask(url, f"ALTER DATABASE {database} SET synchronous_commit = '{default}'")
    with opened(url) as store:
        assert "fsync" in store.durability
        transaction = store.begin()
        transaction.write(A)
        connection = store.writer._connection
        assert connection is not None
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        transaction.rollback()


# PostgresTables.


def test_role_that_may_only_use_the_tables(pg_server: PostgresServer) -> None:
    dsn = pg_server.new_database()
    role = f"role_{uuid.uuid4().hex[:8]}"
    ask(dsn, f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    url = dsn.replace("//postgres:", f"//{role}:") + "&index=i"
    with pytest.raises(Invalid) as caught:
        PostgresStore(url, SCHEMA)
    assert caught.value.code == "index.denied"
    PostgresStore(f"{dsn}&index=other", SCHEMA).close()
    ask(dsn, f"GRANT USAGE ON SCHEMA holdfast TO {role}")
    ask(dsn, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {role}")
    with opened(url) as store:
        commit(store, A)
        assert contents(store) == AFTER_A


def test_role_that_may_only_look(pg_server: PostgresServer) -> None:
    dsn = pg_server.new_database()
    role = f"role_{uuid.uuid4().hex[:8]}"
    ask(dsn, f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    url = dsn.replace("//postgres:", f"//{role}:") + "&index=i"
    with pytest.raises(NotFound):
        PostgresReader(url, SCHEMA)
    assert ask(dsn, "SELECT to_regnamespace('holdfast')") == [(None,)]
    with opened(f"{dsn}&index=i") as store:
        commit(store, A)
        with pytest.raises(Invalid) as caught:
            PostgresReader(url, SCHEMA)
        assert caught.value.code == "index.denied"
        ask(dsn, f"GRANT USAGE ON SCHEMA holdfast TO {role}")
        ask(dsn, f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {role}")
        reader = PostgresReader(url, SCHEMA)
        assert [*reader.scan("results", b"", None), *reader.scan("meta", b"", None)] == AFTER_A
        reader.close()
        commit(store, B)
    with pytest.raises(NotFound):
        PostgresReader(url.replace("index=i", "index=j"), SCHEMA)


def test_tables_that_are_gone_and_rows_that_are_older(pg_server: PostgresServer) -> None:
    url = f"{pg_server.new_database()}&index=i"
    with opened(url) as store:
        commit(store, A)
        (token,) = ask(url, "SELECT token FROM holdfast.indexes")[0]
        commit(store, B)
        ask(url, "UPDATE holdfast.indexes SET token = %s", token)
        with pytest.raises(Corrupt) as caught:
            commit(store, A)
        assert caught.value.code == "index.lost"
        ask(url, "DELETE FROM holdfast.indexes")
        with pytest.raises(Corrupt):
            commit(store, A)
        assert contents(store) == AFTER_B
        ask(url, "DROP SCHEMA holdfast CASCADE")
        for call in (lambda: commit(store, A), lambda: contents(store), lambda: store.get("meta", b"m")):
            with pytest.raises(Corrupt):
                call()


def test_layout_of_a_newer_version(url: str) -> None:
    PostgresStore(url, SCHEMA).close()
    ask(url, "UPDATE holdfast.indexes SET layout = 2 WHERE name = %s", parse(url).name)
    before = ask(url, "SELECT token FROM holdfast.indexes WHERE name = %s", parse(url).name)
    with pytest.raises(Invalid) as caught:
        PostgresStore(url, SCHEMA)
    assert caught.value.code == "index.newer"
    assert ask(url, "SELECT token FROM holdfast.indexes WHERE name = %s", parse(url).name) == before


def test_a_closed_store_refuses_every_call_and_leaves_no_connection(pg_server: PostgresServer) -> None:
    url = f"{pg_server.new_database()}&index=i"
    store = PostgresStore(url, SCHEMA)
    commit(store, A)
    store.close()
    store.close()
    for call in (lambda: store.get("meta", b"a"), lambda: contents(store), lambda: commit(store, A)):
        with pytest.raises(Invalid) as caught:
            call()
        assert caught.value.code == "index.closed"
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"
    with connect(parse(url)) as connection:
        deadline = time.monotonic() + 20
        while connection.execute(sql.SQL(left)).fetchone() != (1,):  # ours; the server takes note a little later
            assert time.monotonic() < deadline
