from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from holdfast.base import postgres
from holdfast.base.postgres import connect, dsn_parts, for_executors, is_lost, message_of, server_name, translated
from holdfast.errors import Invalid, Unavailable
from servers.postgres import PASSWORD


def failure(dsn: str, *statements: str) -> psycopg.Error:
    with connect(dsn) as connection:
        for statement in statements[:-1]:
            connection.execute(statement.encode())
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(statements[-1].encode())
    return caught.value


def test_psycopg_is_not_loaded_with_the_module() -> None:
    code = "import sys, holdfast.base.postgres; sys.exit('psycopg' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_connection_keeps_settings_of_the_dsn(dsn: str) -> None:
    with connect(f"{dsn}{'&' if '?' in dsn else '?'}application_name=mine&connect_timeout=7") as connection:
        found = connection.execute("SELECT current_setting('application_name'), current_setting('client_encoding')")
        assert found.fetchone() == ("mine", "UTF8")
        assert "connect_timeout=7" in connection.info.dsn
        assert connection.isolation_level == psycopg.IsolationLevel.READ_COMMITTED
        assert connection.prepare_threshold is None
        assert not connection.autocommit
    with connect(dsn, autocommit=True) as connection:
        assert connection.autocommit
        assert "keepalives_idle=30" in connection.info.dsn
        assert "tcp_user_timeout=60000" in connection.info.dsn


def test_a_commit_waits_for_the_disk_whatever_the_database_says(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(postgres.DURABLE)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://me:secret@db:5433/shop", "shop at db:5433"),
        ("host=db dbname=shop password=secret", "shop at db"),
        ("", "the default database at the default host"),
    ],
)
def test_a_server_is_named_without_secrets(dsn: str, shown: str) -> None:
    assert server_name(dsn) == shown


def test_an_address_that_cannot_be_read_is_not_quoted() -> None:
    with pytest.raises(Invalid, match="it is not shown") as caught:
        dsn_parts("postgresql://me:secret@db:5433/shop?sslmode", code="address.refused")
    assert "secret" not in str(caught.value)
    assert caught.value.code == "address.refused"
    assert caught.value.__cause__ is None


def test_executors_get_what_came_from_the_environment(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = dsn_parts(dsn)
    for variable, part in (("PGHOST", "host"), ("PGPORT", "port"), ("PGUSER", "user"), ("PGDATABASE", "dbname")):
        if parts.get(part):
            monkeypatch.setenv(variable, str(parts[part]))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with connect("connect_timeout=9") as connection:
        made = for_executors("connect_timeout=9", connection)
    for variable in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(variable)
    with connect(made) as connection:
        assert connection.info.dbname == parts["dbname"]
    assert dsn_parts(made)["connect_timeout"] == "9"


def test_a_connection_that_the_server_ended_is_lost(dsn: str) -> None:
    with connect(dsn) as connection, connect(dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT 1")
        assert is_lost(caught.value)
        assert postgres.trouble_of(caught.value) == "unavailable"
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT 1")
        assert is_lost(caught.value)


def test_a_server_that_is_not_there_is_lost() -> None:
    with pytest.raises(psycopg.Error) as caught:
        connect("host=127.0.0.1 port=1 user=me password=secret")
    assert is_lost(caught.value)
    assert "secret" not in message_of(caught.value)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (pg.SerializationFailure, "unavailable"),
        (pg.DiskFull, "unavailable"),
        (pg.LockNotAvailable, "unavailable"),
        (pg.ReadOnlySqlTransaction, "unavailable"),
        (pg.AdminShutdown, "unavailable"),
        (pg.IdleSessionTimeout, "unavailable"),
        (pg.InsufficientPrivilege, "denied"),
        (pg.InvalidPassword, "denied"),
        (pg.DataCorrupted, "damaged"),
        (pg.IndexCorrupted, "damaged"),
        (pg.UndefinedTable, "missing"),
        (pg.InvalidSchemaName, "missing"),
        (pg.UndefinedColumn, "missing"),
        (pg.UniqueViolation, "data"),
        (pg.NumericValueOutOfRange, "data"),
        (pg.RaiseException, "data"),
        (pg.SyntaxError, "refused"),
        (pg.InternalError_, "refused"),
    ],
)
def test_the_sqlstate_says_what_to_do(error: Any, trouble: str) -> None:
    assert postgres.trouble_of(error("x")) == trouble


def test_a_message_quotes_no_row(dsn: str) -> None:
    table = "CREATE TEMP TABLE t (id int PRIMARY KEY, name text CONSTRAINT short CHECK (length(name) < 5))"
    checked = message_of(failure(dsn, table, "INSERT INTO t VALUES (1, 'secret')"))
    assert checked == 'new row for relation "t" violates check constraint "short".'
    twice = message_of(failure(dsn, table, "INSERT INTO t VALUES (1, 'a'), (1, 'b')"))
    assert "Key (id)=(1) already exists." in twice
    raised = message_of(failure(dsn, "DO $$ BEGIN RAISE EXCEPTION E'one\\ntwo %', repeat('x', 500); END $$"))
    assert raised.startswith("one two xxx")
    assert len(raised) <= postgres.MESSAGE_LIMIT + 2


def test_errors_are_translated_without_their_cause(dsn: str) -> None:
    with (
        connect(dsn) as connection,
        pytest.raises(Unavailable, match="division by zero") as caught,
        translated(lambda error: Unavailable(message_of(error))),
    ):
        connection.execute("SELECT 1 / 0")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
