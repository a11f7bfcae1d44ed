"""The tables of all stores in a database, in the schema `holdfast`, and every statement on them.

There is one table per keyspace, shared by all stores of a kind: a role is granted access once, and opening a store
creates no table. An index uses `index_meta` and `index_results`, and has a row in `indexes`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from itertools import chain
from typing import TYPE_CHECKING

from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

from holdfast.base.postgres import RELEASE_IF_SILENT
from holdfast.base.steps import step
from holdfast.errors import Corrupt, Invalid
from holdfast.storage.kv.store import Kind, Schema

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

LAYOUT = 1
MAX_KEY = 2684
"""The longest key, in bytes, that an index of PostgreSQL takes whatever the key holds: an entry has at most 2,704."""
_LOCK = 0x686F6C6466617374  # "holdfast": the advisory lock under which the tables are created
_REGISTRIES: dict[Kind, str] = {"index": "holdfast.indexes", "store": "holdfast.stores"}

# Number of dimensions, whether there are nulls, type of the items, number of items, index of the first item.
_HEADER = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")

PRELUDE = f"""
{RELEASE_IF_SILENT},
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                  WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
       set_config('lock_timeout', '10s', true), pg_backend_pid(), pg_current_xact_id()::text"""
"""Run at the start of a transaction, with the idle timeout as its parameter. Locks are released if this process
freezes. COMMIT returns when it is on disk, whatever the default is. A lock is waited for at most ten seconds."""
REARM = "SELECT 1"
"""Run after a pipeline in a transaction that stays open. psycopg ends a pipeline with a Flush message, and a server
that has read one does not watch the idle timeout until the next statement."""
END_TRANSACTION = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_xid = %s::xid8::xid"
)
ARE_MADE = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) name"


class PostgresStatements:
    """The statements on one keyspace's table."""

    def __init__(self, table: str, owner: str) -> None:
        def made(text: str) -> bytes:  # psycopg caches the parsed form of queries given as bytes
            return text.format(table=table, owner=owner).encode()

        self.get = made("SELECT value FROM {table} WHERE {owner} = %s AND key = %s")
        self.get_many = made("SELECT key, value FROM {table} WHERE {owner} = %s AND key = ANY(%b::bytea[])")
        self.scan = made("SELECT key, value FROM {table} WHERE {owner} = %s AND key >= %s ORDER BY key LIMIT %s")
        self.scan_to = made(
            "SELECT key, value FROM {table} WHERE {owner} = %s AND key >= %s AND key < %s ORDER BY key LIMIT %s"
        )
        self.put = made(
            "INSERT INTO {table} ({owner}, key, value) SELECT %s, * FROM unnest(%b::bytea[], %b::bytea[]) "
            "ON CONFLICT ({owner}, key) DO UPDATE SET value = excluded.value"
        )
        self.delete = made("DELETE FROM {table} WHERE {owner} = %s AND key = ANY(%b::bytea[])")


class PostgresTables:
    """The tables of one kind of store."""

    def __init__(self, schema: Schema) -> None:
        self._kind = schema.kind
        self.registry = registry = _REGISTRIES[schema.kind]
        owner = f"{schema.kind}_id"
        tables = {space: f"holdfast.{schema.kind}_{space}" for space in schema.names}
        self.names = [registry, *tables.values()]
        self.spaces = {space: PostgresStatements(table, owner) for space, table in tables.items()}
        columns = f"{owner} bigint NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY ({owner}, key)"
        self._make = f"""
CREATE SCHEMA IF NOT EXISTS holdfast;
CREATE TABLE IF NOT EXISTS {registry} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    layout int NOT NULL DEFAULT {LAYOUT},
    token bytea NOT NULL,
    earlier bytea[] NOT NULL DEFAULT '{{}}'
);
""" + "".join(f"CREATE TABLE IF NOT EXISTS {table} ({columns});\n" for table in tables.values())
        self.open = f"""
INSERT INTO {registry} AS old (name, token) VALUES (%(name)s, %(token)s)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, earlier = (array_prepend(old.token, old.earlier))[:%(kept)s]
RETURNING id, layout"""
        self.find = f"SELECT id, layout FROM {registry} WHERE name = %s"
        self.take = f"UPDATE {registry} SET token = %s WHERE id = %s AND token = %s"
        self.locked = f"SELECT token, earlier FROM {registry} WHERE id = %s FOR UPDATE"
        self.end_silent = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE relation = '{registry}'::regclass AND state = 'idle in transaction' AND pid <> pg_backend_pid()
  AND state_change < now() - %s::interval"""
        """For a process that was frozen right after a pipeline (see `REARM`): ends sessions as the timeout would."""
        self.look = f"SELECT token, earlier FROM {registry} WHERE id = %s"
        self.replace = f"UPDATE {registry} SET token = %s WHERE id = %s"

    def make(self, connection: Connection) -> None:
        """Create missing tables. A role that may not create tables needs all of them to exist."""
        if connection.execute(ARE_MADE, [self.names]).fetchone() == (True,):
            return
        with connection.transaction(), step("postgres.tables"):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])  # IF NOT EXISTS alone fails in a race
            connection.execute(self._make.encode())

    def check_layout(self, layout: int, address: str) -> None:
        if layout != LAYOUT:
            error = Invalid if layout > LAYOUT else Corrupt
            raise error(
                f"The {self._kind} has layout {layout}; this version reads layout {LAYOUT}.",
                code=f"{self._kind}.newer",
                about=address,
                unchanged=f"the {self._kind}",
                next_step="use the version of Holdfast that wrote it, or a later one",
            )


class ByteaArray:
    """A query parameter for an array of bytea, faster than a list of bytes."""

    __slots__ = ("items",)

    def __init__(self, items: Collection[bytes]) -> None:
        """`items` must not be empty."""
        self.items = items


class ByteaArrayDumper(Dumper):
    format = Format.BINARY
    oid = types["bytea"].array_oid

    def dump(self, array: ByteaArray) -> bytes:
        lengths = map(_LENGTH.pack, map(len, array.items))
        header = _HEADER.pack(1, 0, types["bytea"].oid, len(array.items), 1)
        return header + b"".join(chain.from_iterable(zip(lengths, array.items, strict=True)))
