"""Connections, and what their failures mean: the one place that knows SQLSTATEs.

No password leaves this module: errors name the place by host, port and database.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.sql import SQL, Literal

from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.sinks.sink import RowsRefused

CONNECT_TIMEOUT = 10  # seconds
_SHOWN = 200  # characters of a server's message: it may quote a value, however long
_DEFAULTS = {
    "connect_timeout": CONNECT_TIMEOUT,
    "fallback_application_name": "holdfast",
    # A server that vanished without a word is noticed after a minute, not after the two hours systems wait by default.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}

DURABLE = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') <> 'remote_apply'"""
"""For this transaction, COMMIT returns when the rows are on disk, whatever the role or the database is set to."""
NOTICED = (
    "SET LOCAL tcp_keepalives_idle = 30; SET LOCAL tcp_keepalives_interval = 10; SET LOCAL tcp_keepalives_count = 3"
)
"""The server notices within a minute that a client is gone without a word, and lets go of what it has locked."""
IDLE_TIMEOUT = "60s"
"""How long a driver may be silent within a transaction. One that is frozen answers keepalives, so that only this ends
its session, and its successor waits for what it has locked."""
UNLIMITED = """
SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"""
"""For this transaction, no limit of the role or the database to how long it takes: an epoch that is decided has to be
committed, and the next attempt would take as long. Servers before PostgreSQL 17 have only the first of the two."""

Connection = psycopg.Connection[tuple[Any, ...]]


def parse(dsn: str) -> dict[str, Any]:
    """The parts of a DSN. `Invalid`, without quoting it, if it is none: it may hold a password."""
    try:
        parts: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        raise Invalid(
            "The DSN of a PostgreSQL sink cannot be read; it is not shown, because it may hold a password.",
            next_step="write postgresql://user:password@host:5432/database, special characters percent-encoded",
        ) from None
    return parts


def place_of(dsn: str) -> str:
    """Where a DSN leads, without user and password, for people."""
    parts = parse(dsn)
    host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "the default host"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{parts.get('dbname') or 'the default database'} at {host}{port}"


@contextlib.contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    """A connection with an open transaction, which is lost unless it is committed before the block ends."""
    given = parse(dsn)
    options = {name: value for name, value in _DEFAULTS.items() if name not in given}
    try:
        # No prepared statements: a pooler between us and the server may hand the next transaction to another one.
        connection = psycopg.connect(dsn, **options, client_encoding="UTF8", prepare_threshold=None)  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise Unavailable(
            f"PostgreSQL does not answer: {_one_line(str(error))}",
            about=place_of(dsn),
            next_step="check that the server runs, and that host, user and password are right; then try again",
        ) from None
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # a rival's commit row must be seen
        yield connection
    finally:
        connection.close()


def let_go_if_silent(connection: Connection) -> None:
    """For this transaction, the server ends the session of a driver that is frozen, or gone without a word."""
    connection.execute(NOTICED)
    connection.execute(SQL("SET LOCAL idle_in_transaction_session_timeout = {}").format(Literal(IDLE_TIMEOUT)))


def for_executors(dsn: str, connection: Connection) -> str:
    """The DSN with everything that this process took from its environment and its password file."""
    given = parse(dsn)
    info = connection.info
    used = {"user": info.user, "password": info.password, "dbname": info.dbname}
    if not given.get("host") and not given.get("hostaddr"):
        used |= {"host": info.host, "port": str(info.port)}
    missing = {name: value for name, value in used.items() if value and not given.get(name)}
    return conninfo.make_conninfo(dsn, **missing)


def lost(error: psycopg.Error) -> bool:
    """Whether the connection broke, so that nothing is known of what the server did last."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P05"}


_TRANSIENT = ("08", "40", "53", "57", "58")  # connection, conflict with another transaction, resources, operator, disk
_TRANSIENT_STATES = {"25006", "25P03", "25P04", "55006", "55P03"}  # a standby, a timeout, a lock
_ROWS = ("22", "23", "44", "54", "P0")  # data, integrity, check option, size limits, a trigger that raised
_SHOWS_ONLY_THE_KEY = {"23503", "23505", "23P01"}  # other details quote the whole row


def explained(
    error: psycopg.Error, doing: str, about: str, unchanged: str | None = None, repair: str | None = None
) -> HoldfastError:
    """The error of our tree that says what to do about it. Never quotes a row.

    `repair` is the next step where rows or the table are at fault.
    """
    state = error.sqlstate
    if lost(error) or (state or "").startswith(_TRANSIENT) or state in _TRANSIENT_STATES:
        return Unavailable(f"PostgreSQL failed while {doing}: {said(error)}", about=about, unchanged=unchanged)
    if state == "42501" or (state or "").startswith("28"):
        return Invalid(
            f"PostgreSQL denies {doing}: {said(error)}",
            code="sink.denied",
            about=about,
            unchanged=unchanged,
            next_step="let the role read and write the target and holdfast_commits, and create tables in their schema: "
            "GRANT SELECT, INSERT, UPDATE, DELETE ON the tables and GRANT USAGE, CREATE ON SCHEMA to it",
        )
    if state in {"XX001", "XX002"}:
        return Corrupt(f"PostgreSQL reports damage while {doing}: {said(error)}", about=about, unchanged=unchanged)
    if (state or "").startswith(_ROWS):
        return RowsRefused(
            f"PostgreSQL refuses rows while {doing}: {said(error)}", about=about, unchanged=unchanged, next_step=repair
        )
    return Invalid(
        f"PostgreSQL refuses {doing}: {said(error)}",
        about=about,
        unchanged=unchanged,
        next_step=repair or "if somebody changed the table since the pipeline started, start the pipeline again",
    )


@contextlib.contextmanager
def translated(doing: str, about: str, unchanged: str | None = None, repair: str | None = None) -> Iterator[None]:
    """Raise our own errors instead of psycopg's, whose texts may quote rows."""
    try:
        yield
    except psycopg.Error as error:
        raise explained(error, doing, about, unchanged, repair) from None


def said(error: psycopg.Error) -> str:
    """What the server said, in one line, with the object it is about and, where it is only a key, the example."""
    diagnosis = error.diag
    text = _one_line(diagnosis.message_primary or str(error))
    if diagnosis.constraint_name and diagnosis.constraint_name not in text:
        text += f" (constraint {diagnosis.constraint_name})"
    if diagnosis.message_detail and error.sqlstate in _SHOWS_ONLY_THE_KEY:
        text += f" ({_one_line(diagnosis.message_detail)})"
    return text if text.endswith(".") else text + "."


def column_of(error: psycopg.Error, columns: list[str]) -> str | None:
    """The column in which COPY came upon the value it refuses. Its words depend on the server's language."""
    found = re.search(r"^COPY [^,]+, \S+ \d+, \S+ (.+?)(?:: |$)", error.diag.context or "", re.DOTALL | re.MULTILINE)
    return next((name for name in columns if found and found[1] == name), error.diag.column_name)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
