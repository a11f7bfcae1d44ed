"""Addresses of indexes on PostgreSQL, connections to it, and what their errors mean.

No password leaves this module: errors name the place by host, port, database and index.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
from psycopg import conninfo

from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.storage.kv.postgres_arrays import ByteaArray, ByteaArrayDumper
from holdfast.storage.kv.token import NOTHING_APPLIED

_SHOWN = 200  # characters of a server's message
_NAME_LIMIT = 200
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "fallback_application_name": "holdfast",
    # A server that vanished without a word is noticed after a minute, not after the two hours systems wait by default.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_TRANSIENT = ("08", "40", "53", "57", "58")  # connection, conflict with another transaction, resources, operator, disk
_TRANSIENT_STATES = {"25006", "25P03", "25P04", "55006", "55P03"}  # a standby, a timeout, a lock

Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresAddress(msgspec.Struct, frozen=True):
    """An address, taken apart. `dsn` may hold a password; `shown` does not."""

    shown: str
    index: str
    dsn: str


def parse(url: str) -> PostgresAddress:
    """`postgresql://user:password@host:port/database?index=name`; other parameters are libpq's."""
    try:
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
        rest = urllib.parse.urlencode([pair for pair in query if pair[0] != "index"], quote_via=urllib.parse.quote)
        dsn = urllib.parse.urlunsplit((parts.scheme, *parts[1:3], rest, ""))
        found = conninfo.conninfo_to_dict(dsn)
    except (ValueError, psycopg.Error):
        raise _invalid("The address cannot be read; it is not shown, because it may hold a password.") from None
    index = dict(query).get("index", "default")
    if not index or len(index) > _NAME_LIMIT or not index.isprintable():
        raise _invalid(f"{index[:50]!r} is not a name for an index: 1 to {_NAME_LIMIT} characters that can be printed.")
    host = found.get("host") or found.get("hostaddr") or ""
    port = f":{found['port']}" if found.get("port") else ""
    return PostgresAddress(f"postgresql://{host}{port}/{found.get('dbname') or ''}?index={index}", index, dsn)


def _invalid(why: str) -> Invalid:
    return Invalid(
        why,
        code="address.refused",
        next_step="write postgresql://user:password@host:5432/database?index=name, special characters percent-encoded",
    )


def connect(address: PostgresAddress) -> Connection:
    """A new connection, outside a transaction. `psycopg.Error` if there is none to be had."""
    given = conninfo.conninfo_to_dict(address.dsn)
    options = {name: value for name, value in _DEFAULTS.items() if name not in given}
    # No prepared statements: a pooler between us and the server may hand the next transaction to another one.
    connection = psycopg.connect(
        address.dsn, **options, client_encoding="UTF8", autocommit=True, prepare_threshold=None
    )
    connection.adapters.register_dumper(ByteaArray, ByteaArrayDumper)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # a rival's token must be seen
    return connection


def lost(error: psycopg.Error) -> bool:
    """Whether the connection broke, so that nothing is known of what the server did last."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P05"}


@contextlib.contextmanager
def translated(doing: str, address: str) -> Iterator[None]:
    """Raise our own errors instead of psycopg's, for what has applied nothing."""
    try:
        yield
    except psycopg.Error as error:
        raise explained(error, doing, address) from None


def explained(error: psycopg.Error, doing: str, address: str) -> HoldfastError:
    state = error.sqlstate or ""
    if state == "42501" or state.startswith("28"):
        return Invalid(
            f"PostgreSQL denies {doing}: {said(error)}",
            code="index.denied",
            about=address,
            unchanged=NOTHING_APPLIED,
            next_step="check user and password, and let the role create the schema holdfast, or use it: GRANT USAGE ON "
            "SCHEMA holdfast; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast",
        )
    if state in {"XX001", "XX002", "42P01", "3F000", "42703"}:
        return Corrupt(
            f"The index is damaged, or its tables were changed; found while {doing}: {said(error)}",
            code="index.damaged",
            about=address,
            unchanged=NOTHING_APPLIED,
            next_step="restore the schema holdfast from a backup, or remove it and start over: the sources are then "
            "read from their beginning",
        )
    if lost(error) or state.startswith(_TRANSIENT) or state in _TRANSIENT_STATES:
        return Unavailable(
            f"PostgreSQL failed while {doing}: {said(error)}",
            code="index.unavailable",
            about=address,
            unchanged=NOTHING_APPLIED,
            next_step="check that the server runs and has room on its disk; then try again",
        )
    return Invalid(
        f"PostgreSQL refuses {doing}: {said(error)}",
        code="index.refused",
        about=address,
        unchanged=NOTHING_APPLIED,
        next_step="see what the message says",
    )


def said(error: psycopg.Error) -> str:
    line = " ".join((error.diag.message_primary or str(error)).split())
    line = line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
    return line if line.endswith(".") else line + "."
