"""Reads a store on PostgreSQL, on connections of its own: sees committed data, and never waits for a writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from holdfast.base import forks
from holdfast.base.postgres import is_lost
from holdfast.storage.kv import errors
from holdfast.storage.kv.postgres_server import PostgresAddress, connect, explained, parse, translated
from holdfast.storage.kv.postgres_tables import ARE_MADE, ByteaArray, PostgresTables
from holdfast.storage.kv.store import Row, Schema

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

PAGE = 500
MAX_TABLE_NAME = 63
"""In bytes; PostgreSQL truncates longer names without an error."""
_TABLES = (
    "SELECT tablename::text FROM pg_tables WHERE schemaname = ANY(current_schemas(false)) AND left(tablename, %s) = %s"
)

_VIEWS = """
SELECT CASE relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'VIEW' END, relname::text
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind IN ('v', 'm') AND nspname = ANY(current_schemas(false)) AND left(relname, %s) = %s"""


class PostgresReads:
    """Reads committed values; a scan sees one snapshot. May be used from any thread."""

    def __init__(self, address: PostgresAddress, tables: PostgresTables) -> None:
        self.store_id = 0
        """The id of the store; must be set before anything is read."""
        self._at = address
        self._spaces = tables.spaces
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False
        forks.opened(self)

    def get(self, space: str, key: bytes) -> bytes | None:
        rows = self.fetched(self._spaces[space].get, [self.store_id, key])
        found: bytes | None = rows[0][0] if rows else None
        return found

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        found = dict(self.fetched(self._spaces[space].get_many, [self.store_id, ByteaArray(keys)]))
        return [found.get(key) for key in keys]

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """Reads all rows at once if `limit` is at most one page, otherwise through a cursor."""
        self.check_open()
        query = self._spaces[space].scan if end is None else self._spaces[space].scan_to
        arguments = [self.store_id, start, *([] if end is None else [end]), limit]
        if limit is not None and limit <= PAGE:
            return iter([(row[0], row[1]) for row in self.fetched(query, arguments)])
        return self._pages(query, arguments)

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Run a SQL query of the user. A mistake in it raises psycopg's error, a failure of the server one of ours."""
        for is_last in (False, True):
            connection = self._borrowed(new=is_last)
            try:
                with connection.transaction():
                    connection.execute("SET TRANSACTION READ ONLY")
                    return connection.execute(sql.encode(), parameters or None).fetchall()
            except psycopg.Error as error:
                self.check_open()
                if is_lost(error) and is_last:
                    raise explained(error, "reading", self._at) from None
                if not is_lost(error):
                    raise
            finally:
                self._give_back(connection)
        raise AssertionError("the second try either returns or raises")

    @property
    def table_prefix(self) -> str:
        """The prefix of read models' tables, because several stores share one database."""
        return f"store_{self.store_id}_"

    def tables(self, prefix: str) -> list[str]:
        return [name for (name,) in self.fetched(_TABLES, [len(prefix), prefix])]

    def views(self, prefix: str) -> list[tuple[str, str]]:
        return [(kind, name) for kind, name in self.fetched(_VIEWS, [len(prefix), prefix])]

    def _pages(self, query: bytes, arguments: list[Any]) -> Iterator[Row]:
        for is_last in (False, True):
            connection = self._borrowed(new=is_last)
            has_begun = False
            try:
                with connection.transaction(), connection.cursor("scan") as cursor:
                    cursor.itersize = PAGE
                    cursor.execute(query, arguments, binary=True)
                    for row in cursor:
                        has_begun = True
                        yield row[0], row[1]
                        self.check_open()
                return
            except psycopg.Error as error:
                self.check_open()
                if is_last or has_begun or not is_lost(error):
                    raise explained(error, "reading", self._at) from None
            finally:
                self._give_back(connection)

    def fetched(self, query: Any, arguments: list[Any]) -> list[tuple[Any, ...]]:
        """The rows of a query; repeated once on a new connection if the old one is broken."""
        with translated("reading", self._at):
            for is_last in (False, True):
                connection = self._borrowed(new=is_last)
                try:
                    return connection.execute(query, arguments, binary=True).fetchall()
                except psycopg.Error as error:
                    self.check_open()
                    if is_last or not is_lost(error):
                        raise
                finally:
                    self._give_back(connection)
        raise AssertionError("the second try either returns or raises")

    def close(self) -> None:
        """Close all connections. Scans under way end with an error."""
        forks.closed(self)
        self._closed = True
        with self._lock:
            for connection in (*self._idle, *self._busy):
                connection.close()
            self._idle.clear()

    def forget_in_child(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may hold it, and does not exist in this process
        for connection in (*self._idle, *self._busy):
            cut_off(connection)
        self.close()

    def _borrowed(self, *, new: bool) -> Connection:
        self.check_open()
        with self._lock:
            connection = self._idle.pop() if self._idle and not new else None
        if connection is None:
            with translated("connecting", self._at):
                connection = connect(self._at)
        with self._lock:
            self._busy.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            if connection.closed or self._closed or self._idle:
                connection.close()
            else:
                self._idle.append(connection)

    def check_open(self) -> None:
        if self._closed:
            raise errors.closed(self._at.kind, self._at.shown)


def cut_off(connection: Connection) -> None:
    """In a forked child: cut the connection off from the server, so that using or closing it here sends nothing."""
    if not connection.closed:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, connection.fileno())
        os.close(nothing)


class PostgresReader:
    """Reads a store with queries only: a role with read access is enough, and no writer is fenced or delayed."""

    is_persistent = True
    max_table_name = MAX_TABLE_NAME

    def __init__(self, url: str, schema: Schema) -> None:
        address, tables = parse(url, schema.kind), PostgresTables(schema)
        reads = PostgresReads(address, tables)
        self.address = address.shown
        self.get = reads.get
        self.get_many = reads.get_many
        self.scan = reads.scan
        self.query = reads.query
        self.tables = reads.tables
        self.views = reads.views
        self.close = reads.close
        try:
            is_made = reads.fetched(ARE_MADE, [tables.names]) == [(True,)]
            found = reads.fetched(tables.find, [address.name]) if is_made else []
            if not found:
                raise errors.not_there(schema.kind, self.address)
            reads.store_id, layout = found[0]
            tables.check_layout(layout, self.address)
            self.table_prefix = reads.table_prefix
        except BaseException:
            self.close()
            raise
