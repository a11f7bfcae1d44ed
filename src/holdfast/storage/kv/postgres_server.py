"""Addresses of stores on PostgreSQL, connections, and psycopg's errors as errors of the store.

No password leaves this module: errors show host, port, database and name only.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import TYPE_CHECKING

import msgspec
import psycopg

from holdfast.base import postgres
from holdfast.base.postgres import Trouble, message_of
from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.storage.kv import errors
from holdfast.storage.kv.postgres_tables import MAX_KEY, ByteaArray, ByteaArrayDumper
from holdfast.storage.kv.store import Kind

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

_NAME_LIMIT = 200


class PostgresAddress(msgspec.Struct, frozen=True):
    """A parsed address. `dsn` may hold a password; `shown` does not."""

    shown: str
    kind: Kind
    name: str
    """The name of the store: a database may have many."""
    dsn: str


def parse(url: str, kind: Kind = "index") -> PostgresAddress:
    """`postgresql://user:password@host:port/database?index=name`; other parameters are libpq's.

    A store of events has `store=name` instead of `index=name`.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        query = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
        rest = urllib.parse.urlencode([pair for pair in query if pair[0] != kind], quote_via=urllib.parse.quote)
        dsn = urllib.parse.urlunsplit((parts.scheme, *parts[1:3], rest, ""))
        found = postgres.dsn_parts(dsn)
    except (ValueError, Invalid):
        raise _invalid("The address cannot be read; it is not shown, because it may hold a password.", kind) from None
    name = dict(query).get(kind, "default")
    if not name or len(name) > _NAME_LIMIT or not name.isprintable():
        raise _invalid(
            f"{name[:50]!r} is not a name for {errors.a(kind)}: 1 to {_NAME_LIMIT} characters that can be printed.",
            kind,
        )
    host = found.get("host") or found.get("hostaddr") or ""
    port = f":{found['port']}" if found.get("port") else ""
    return PostgresAddress(f"postgresql://{host}{port}/{found.get('dbname') or ''}?{kind}={name}", kind, name, dsn)


def _invalid(why: str, kind: Kind) -> Invalid:
    return Invalid(
        why,
        code="address.refused",
        next_step=f"write postgresql://user:password@host:5432/database?{kind}=name, special characters "
        "percent-encoded",
    )


def connect(address: PostgresAddress) -> Connection:
    """A new connection, outside a transaction. `psycopg.Error` if connecting fails."""
    connection = postgres.connect(address.dsn, autocommit=True)
    connection.adapters.register_dumper(ByteaArray, ByteaArrayDumper)
    return connection


def translated(doing: str, address: PostgresAddress) -> contextlib.AbstractContextManager[None]:
    """Raise our own errors instead of psycopg's. Only for actions that have applied nothing if they fail."""
    return postgres.translated(lambda error: explained(error, doing, address))


_TOO_LARGE = "54000"
"""How PostgreSQL refuses an entry that is too large for an index: no other statement of ours reaches a limit."""


def explained(error: psycopg.Error, doing: str, address: PostgresAddress) -> HoldfastError:
    kind, said = address.kind, message_of(error)
    if error.sqlstate == _TOO_LARGE:
        return errors.long_key(kind, said, MAX_KEY, address.shown)
    trouble: Trouble = postgres.trouble_of(error)
    if trouble == "denied":
        return Invalid(
            f"PostgreSQL denies {doing}: {said}",
            code=f"{kind}.denied",
            about=address.shown,
            unchanged=errors.nothing_applied(kind),
            next_step="check user and password, and let the role create the schema holdfast, or use it: GRANT USAGE ON "
            "SCHEMA holdfast; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast",
        )
    if trouble in ("damaged", "missing"):
        start_over = ", or remove it and start over: the sources are then read from their beginning"
        return Corrupt(
            f"The {kind} is damaged, or its tables were changed; found while {doing}: {said}",
            code=f"{kind}.damaged",
            about=address.shown,
            unchanged=errors.nothing_applied(kind),
            next_step="restore the schema holdfast from a backup" + (start_over if kind == "index" else ""),
        )
    if trouble == "unavailable":
        return Unavailable(
            f"PostgreSQL failed while {doing}: {said}",
            code=f"{kind}.unavailable",
            about=address.shown,
            unchanged=errors.nothing_applied(kind),
            next_step="check that the server runs and has room on its disk; then try again",
        )
    return Invalid(
        f"PostgreSQL refuses {doing}: {said}",
        code=f"{kind}.refused",
        about=address.shown,
        unchanged=errors.nothing_applied(kind),
        next_step="correct what PostgreSQL's message names",
    )
