"""The PostgreSQL server of the test kit: it can be killed and started again, and it never outlives its test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import psycopg
import pytest
from postgres_hands import ask

from servers.postgres import PASSWORD, PostgresServer, postgres_server

LASTING = f"""
import sys
sys.path[:] = {sys.path!r}
from servers.postgres import postgres_server
with postgres_server() as server:
    print(server.pid, server.folder, flush=True)
    input()
"""


def gone(process: psutil.Process) -> bool:
    """Told by its number and when it began: numbers are used again."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_each_database_is_empty_and_wants_the_password(pg_server: PostgresServer) -> None:
    first, second = pg_server.new_database(), pg_server.new_database()
    ask(first, "CREATE TABLE t (a int)")
    assert ask(second, "SELECT to_regclass('t')") == [None]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(first.replace(PASSWORD, "wrong"))


def test_a_database_that_is_dropped_takes_its_connections_along(pg_server: PostgresServer) -> None:
    dropped, other = pg_server.new_database(), pg_server.new_database()
    with psycopg.connect(dropped, autocommit=True) as connection:
        pg_server.drop_database(dropped)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dropped)
    assert ask(other, "SELECT 1") == [1]


def test_killed_and_started_again() -> None:
    with postgres_server() as server:
        dsn = server.new_database()
        ask(dsn, "CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        first = psutil.Process(server.pid)
        with psycopg.connect(dsn) as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            server.kill()
            assert gone(first)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn)
        server.start()
        second, folder = psutil.Process(server.pid), server.folder
        assert second != first
        assert ask(dsn, "SELECT a FROM t") == [1]
    assert gone(second)
    assert not folder.exists()


def test_a_killed_server_is_cleared_away() -> None:
    with postgres_server() as server:
        server.kill()
        folder = server.folder
    assert not folder.exists()


def test_it_ends_with_the_process_that_started_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LASTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        server = psutil.Process(int(pid))
        process.kill()
    wait_until(lambda: gone(server), "the server has ended")
    wait_until(lambda: not os.path.exists(folder), "its folder is gone")


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
