"""Connections to PostgreSQL, and the meaning of their errors: the only module that knows SQLSTATEs.

Importing this module does not import psycopg; the functions that need it do. No message contains a password: messages
name a server by host, port and database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.errors import HoldfastError, Invalid, one_line

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

MESSAGE_LIMIT = 200
"""At most so many characters of a server's message are quoted: it may contain a value of any length."""

DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "fallback_application_name": "holdfast",
    # Detect a server that vanished without closing the connection after a minute; by default it takes two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Settings of every connection, unless the DSN has its own."""

DURABLE = """
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') <> 'remote_apply'"""
"""Makes COMMIT of this transaction return only when the rows are on disk, whatever the role or database is set to."""

KEEPALIVES = """
       set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),
       set_config('tcp_keepalives_count', '3', true)"""
"""Columns of a SELECT: for this transaction, the server notices within a minute that a client is gone, and releases its
locks. With a connection pooler in between, the pooler has to notice."""
IDLE_TIMEOUT = "60s"
"""How long a process may be silent within a transaction. A frozen process still answers keepalives, so only this
timeout ends its session and releases the locks that the next process waits for."""
RELEASE_IF_SILENT = f"SELECT {KEEPALIVES}, set_config('idle_in_transaction_session_timeout', %s, true)"
"""For this transaction, the server ends the session of a process that is frozen (after the timeout that is the
parameter), or unreachable."""

Trouble = Literal["unavailable", "denied", "damaged", "missing", "data", "refused"]
"""The kinds of PostgreSQL's errors. The reactions, in this order: try again later; grant rights; restore; find out what
changed the tables; correct the rows; correct the request."""

_LOST_STATES = {"57P01", "57P02", "57P03", "57P05"}  # the server ends, crashed, starts, ended an idle session
_TRANSIENT = ("08", "40", "53", "57", "58")  # connection, conflict with another transaction, resources, operator, disk
_TRANSIENT_STATES = {"25006", "25P03", "25P04", "55006", "55P03"}  # a standby, a timeout, a lock
_DATA = ("22", "23", "44", "54", "P0")  # data, integrity, check option, size limits, a trigger that raised
_DAMAGED = {"XX001", "XX002"}
_MISSING = {"42P01", "3F000", "42703"}  # table, schema, column
_SHOWS_ONLY_THE_KEY = {"23503", "23505", "23P01"}  # other details quote the whole row


def dsn_parts(dsn: str, *, code: str | None = None) -> dict[str, Any]:
    """The parts of a DSN. `Invalid` if it cannot be parsed; the message does not quote it: it may hold a password."""
    import psycopg
    from psycopg import conninfo

    try:
        parts: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        raise Invalid(
            "The PostgreSQL address cannot be read; it is not shown, because it may hold a password.",
            code=code,
            unchanged="everything",
            next_step="write postgresql://user:password@host:5432/database, special characters percent-encoded",
        ) from None
    return parts


def server_name(dsn: str) -> str:
    """The database, host and port of a DSN, for messages: without user and password."""
    parts = dsn_parts(dsn)
    host = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "the default host"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{parts.get('dbname') or 'the default database'} at {host}{port}"


def connect(dsn: str, *, autocommit: bool = False) -> Connection:
    """A new connection. `psycopg.Error` if connecting fails."""
    import psycopg

    given = dsn_parts(dsn)
    options = {name: value for name, value in DEFAULTS.items() if name not in given}
    # No prepared statements: a connection pooler may run the next transaction on another server session.
    connection = psycopg.connect(dsn, **options, client_encoding="UTF8", autocommit=autocommit, prepare_threshold=None)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # must see other writers' commits
    return connection


def for_executors(dsn: str, connection: Connection) -> str:
    """The DSN, completed with the values that this process took from its environment and its password file."""
    from psycopg import conninfo

    given = dsn_parts(dsn)
    info = connection.info
    used = {"user": info.user, "password": info.password, "dbname": info.dbname}
    if not given.get("host") and not given.get("hostaddr"):
        used |= {"host": info.host, "port": str(info.port)}
    missing = {name: value for name, value in used.items() if value and not given.get(name)}
    return conninfo.make_conninfo(dsn, **missing)


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection broke: the outcome of the last statement is then unknown."""
    import psycopg

    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith("08") or state in _LOST_STATES


def trouble_of(error: psycopg.Error) -> Trouble:
    """The kind of an error, by its SQLSTATE."""
    state = error.sqlstate or ""
    if is_lost(error) or state.startswith(_TRANSIENT) or state in _TRANSIENT_STATES:
        return "unavailable"
    if state == "42501" or state.startswith("28"):
        return "denied"
    if state in _DAMAGED:
        return "damaged"
    if state in _MISSING:
        return "missing"
    return "data" if state.startswith(_DATA) else "refused"


def message_of(error: psycopg.Error) -> str:
    """The server's message as one sentence that quotes no row: a constraint by its name, a duplicate by its key."""
    diagnosis = error.diag
    text = _one_line(diagnosis.message_primary or str(error))
    if diagnosis.constraint_name and diagnosis.constraint_name not in text:
        text += f" (constraint {diagnosis.constraint_name})"
    if diagnosis.message_detail and error.sqlstate in _SHOWS_ONLY_THE_KEY:
        text += f" ({_one_line(diagnosis.message_detail)})"
    return text if text.endswith(".") else text + "."


@contextlib.contextmanager
def translated(explain: Callable[[psycopg.Error], HoldfastError]) -> Iterator[None]:
    """Replace psycopg's errors by those that `explain` returns. Not chained: psycopg's texts may quote rows."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise explain(error) from None


def _one_line(text: str) -> str:
    # Keep all lines: libpq lists every host that it has tried.
    return one_line(" ".join(text.split()), MESSAGE_LIMIT)
