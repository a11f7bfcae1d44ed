"""A driver that falls silent within a transaction, and limits of the server that would keep an epoch owed. No Spark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from postgres_hands import ask, at, opened, stage, staging_tables, wait_until

from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import SinkProgress

pytestmark = pytest.mark.usefixtures("by_hand")

SCRIPT = Path(__file__).with_name("postgres_frozen.py")
ROWS = [(1, "one"), (2, "two")]
IN_TRANSACTION = """
SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"""


@contextlib.contextmanager
def frozen(dsn: str, work: str, descriptor: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A driver that has stopped within its transaction."""
    # A successor that is not let on fails, instead of waiting for ever.
    ask(dsn, f"ALTER DATABASE {ask(dsn, 'SELECT current_database()')[0]} SET lock_timeout = '20s'")
    command = [sys.executable, str(SCRIPT), dsn, work, json.dumps(descriptor)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            yield process
        finally:
            process.kill()


def ending(process: subprocess.Popen[str]) -> str:
    """What becomes of the driver when it goes on."""
    os.kill(process.pid, signal.SIGCONT)
    return process.communicate(timeout=60)[0].split("\n")[0]


def test_in_a_commit(dsn: str) -> None:
    descriptor = stage(opened(dsn, key="id"), ROWS, at(1))
    with frozen(dsn, "commit", descriptor) as driver:
        PostgresSink(dsn, "out", "id").commit(descriptor, at(1, generation=2))
        assert ending(driver).startswith("Unavailable")
    assert ask(dsn, "SELECT id, name FROM out ORDER BY id") == ROWS
    assert ask(dsn, "SELECT generation FROM holdfast_commits") == [2]
    assert staging_tables(dsn) == []


def test_in_a_commit_that_nobody_finishes(dsn: str) -> None:
    """Waking up, the frozen one is told what happened, and that nothing did: committing again settles it."""
    sink = opened(dsn, key="id")
    descriptor = stage(sink, ROWS, at(1))
    with frozen(dsn, "commit", descriptor) as driver:
        wait_until(lambda: not ask(dsn, IN_TRANSACTION))
        said = ending(driver)
    assert said.startswith("Unavailable")
    assert "idle-in-transaction timeout" in said
    assert ask(dsn, "SELECT id, name FROM out ORDER BY id") == []
    sink.commit(descriptor, at(1))
    assert ask(dsn, "SELECT id, name FROM out ORDER BY id") == ROWS


def test_in_a_preparation(dsn: str) -> None:
    with frozen(dsn, "prepare", {}) as driver:
        opened(dsn, key="id")
        assert ending(driver).startswith("Unavailable")
    assert ask(dsn, "SELECT count(*) FROM out") == [0]


def test_in_a_trial_of_the_merge(dsn: str) -> None:
    sink = opened(dsn, key="id")
    first = stage(sink, ROWS, at(1))
    ask(dsn, "CREATE UNIQUE INDEX ON out (name)")  # makes a trial necessary
    with frozen(dsn, "stage", {}) as driver:
        sink.commit(first, at(1))
        assert ending(driver).startswith("Unavailable")
    assert ask(dsn, "SELECT id, name FROM out ORDER BY id") == ROWS
    assert staging_tables(dsn) == []


def test_in_a_rollback(dsn: str) -> None:
    sink = opened(dsn, key="id")
    descriptor = stage(sink, ROWS, at(1))
    with frozen(dsn, "rollback", descriptor) as driver:
        assert sink.recover(at(1, generation=2), None) == SinkProgress()
        assert staging_tables(dsn) == []
        assert ending(driver).startswith("Unavailable")


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END$$;
CREATE TRIGGER s AFTER INSERT ON out FOR EACH STATEMENT EXECUTE FUNCTION slow()"""


@pytest.mark.parametrize("limit", ["statement_timeout", "transaction_timeout"])
def test_a_commit_takes_the_time_it_needs(limit: str, dsn: str) -> None:
    """A limit would end it at every attempt, and the epoch would be owed for ever."""
    sink = opened(dsn)
    descriptor = stage(sink, ROWS, at(1))
    ask(dsn, SLOW)
    ask(dsn, f"ALTER DATABASE {ask(dsn, 'SELECT current_database()')[0]} SET {limit} = '200ms'")
    sink.commit(descriptor, at(1))
    assert ask(dsn, "SELECT id, name FROM out ORDER BY id") == ROWS
