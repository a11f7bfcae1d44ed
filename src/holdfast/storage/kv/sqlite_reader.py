"""Reads a store in a SQLite file, on connections of its own: sees committed data, and never waits for a writer."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from holdfast.base import forks
from holdfast.base.addresses import kv_address
from holdfast.storage.kv import errors
from holdfast.storage.kv.sqlite_errors import ERRORS
from holdfast.storage.kv.store import Mode, Row, Schema

PATIENCE = {"exclusive": 5.0, "shared": 30.0, "read": 30.0}
"""Seconds to wait for a lock that another connection holds on the file."""
_IDLE_READERS = 4
_AT_ONCE = 500
"""Keys in one SELECT."""
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ?"
_VIEWS = "SELECT name FROM sqlite_master WHERE type = 'view' AND substr(name, 1, ?) = ?"
_READER_SETTINGS = ("query_only = ON", "cache_size = -16384")


class SqliteStatements:
    """The statements on one keyspace's table."""

    def __init__(self, table: str) -> None:
        self.get = f"SELECT value FROM {table} WHERE key = ?"
        self.get_many = f"SELECT key, value FROM {table} WHERE key IN "
        self.scan = f"SELECT key, value FROM {table} WHERE key >= ? ORDER BY key LIMIT ?"
        self.scan_to = f"SELECT key, value FROM {table} WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        self.put = f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        self.delete = f"DELETE FROM {table} WHERE key = ?"
        self.create = f"CREATE TABLE {table} (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID"


class SqliteReader:
    """Reads on connections that cannot write, beside other processes that have the store open. `NotFound` if none."""

    is_persistent = True
    table_prefix = ""
    max_table_name = None

    def __init__(self, path: str, schema: Schema, mode: Mode = "read") -> None:
        self.address = kv_address("sqlite", path)
        self.kind = schema.kind
        self._schema = schema
        self._errors = ERRORS[schema.kind]
        self._statements = {keyspace.name: SqliteStatements(keyspace.table) for keyspace in schema.keyspaces}
        self._path = os.path.realpath(path)
        self._patience = PATIENCE[mode]
        self._source = f"file:{quote(os.fsencode(self._path))}" + ("?mode=ro" if mode == "read" else "")
        self._idle: list[sqlite3.Connection] = []
        self._readers: set[sqlite3.Connection] = set()
        self._is_closed = False
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        forks.opened(self)

    def get(self, space: str, key: bytes) -> bytes | None:
        with self._reader() as reader, self.errors_explained():
            return self.get_from(reader, space, key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._reader() as reader, self.errors_explained():
            return self.get_many_from(reader, space, keys)

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """With a limit, all rows are read at once; otherwise one by one, on a connection of the scan's own."""
        if limit is not None:
            with self._reader() as reader, self.errors_explained():
                return iter(self.select(reader, space, start, end, limit).fetchall())
        return self._stream(space, start, end)

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        with self._own_reader() as reader:
            return reader.execute(sql, parameters).fetchall()

    def tables(self, prefix: str) -> list[str]:
        with self.errors_explained():
            return [name for (name,) in self.query(_TABLES, (len(prefix), prefix))]

    def views(self, prefix: str) -> list[tuple[str, str]]:
        with self.errors_explained():
            return [("VIEW", name) for (name,) in self.query(_VIEWS, (len(prefix), prefix))]

    def close(self) -> None:
        forks.closed(self)
        self._is_closed = True
        for connection in self._connections():
            # After a disk failure, closing has nothing left to save.
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        self._forget()

    def forget_in_child(self) -> None:
        """Leak the connections: closing one would roll back the parent's transaction, in the shared memory of both."""
        self._is_closed = True
        for connection in self._connections():
            forks.leak(connection)
        self._forget()

    def check_open(self) -> None:
        if self._is_closed:
            raise errors.closed(self.kind, self.address)

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._errors.explained(error, self.address) from error

    def get_from(self, connection: sqlite3.Connection, space: str, key: bytes) -> bytes | None:
        row = connection.execute(self._statements[space].get, (key,)).fetchone()
        return None if row is None else row[0]

    def get_many_from(self, connection: sqlite3.Connection, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if len(keys) == 1:
            return [self.get_from(connection, space, keys[0])]
        found: dict[bytes, bytes] = {}
        starts = range(0, len(keys), _AT_ONCE)
        is_ours = len(starts) > 1 and not connection.in_transaction
        try:
            if is_ours:
                connection.execute("BEGIN")
            for start in starts:
                some = keys[start : start + _AT_ONCE]
                statement = self._statements[space].get_many + f"({','.join('?' * len(some))})"
                found.update(connection.execute(statement, some))
        finally:
            if is_ours:
                connection.rollback()
        return [found.get(key) for key in keys]

    def select(
        self, connection: sqlite3.Connection, space: str, start: bytes, end: bytes | None, limit: int | None
    ) -> sqlite3.Cursor:
        most = -1 if limit is None else limit
        if end is None:
            return connection.execute(self._statements[space].scan, (start, most))
        return connection.execute(self._statements[space].scan_to, (start, end, most))

    def _stream(self, space: str, start: bytes, end: bytes | None) -> Iterator[Row]:
        with self._own_reader() as reader, self.errors_explained():
            rows = self.select(reader, space, start, end, None)
            try:
                for row in rows:
                    yield row
                    self.check_open()  # closed meanwhile, or this is a forked child
            finally:
                with contextlib.suppress(sqlite3.ProgrammingError):  # closed meanwhile, with the whole store
                    rows.close()

    def _open(self) -> None:
        if not os.path.isfile(self._path):
            raise errors.not_there(self.kind, self.address)
        with self.errors_explained(), self._own_reader() as reader:
            if not count_tables(reader):
                raise errors.not_there(self.kind, self.address)
            self._check_ours(reader)

    def _reader(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A connection for one short read."""
        return self._own_reader()

    @contextlib.contextmanager
    def _own_reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for one reader: two reads on one connection would share the older snapshot."""
        self.check_open()
        try:
            reader = self._idle.pop()
        except IndexError:
            with self.errors_explained():
                reader = self._connect()
                for setting in _READER_SETTINGS:
                    reader.execute(f"PRAGMA {setting}")
            self._readers.add(reader)
        try:
            yield reader
        finally:
            if reader not in self._readers:
                pass  # closed meanwhile, or it belongs to the parent of this forked child
            elif len(self._idle) < _IDLE_READERS:
                self._idle.append(reader)
            else:
                self._readers.discard(reader)
                reader.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._source, self._patience, uri=True, isolation_level=None, check_same_thread=False)

    def _connections(self) -> list[sqlite3.Connection]:
        return list(self._readers)

    def _forget(self) -> None:
        self._idle, self._readers = [], set()

    def _check_ours(self, connection: sqlite3.Connection) -> None:
        # Tables first: another process that makes the store meanwhile commits both together.
        has_tables = count_tables(connection) > 0
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if has_tables and application != self._schema.application_id:
            raise self._errors.foreign(self.address)
        version, known = connection.execute("PRAGMA user_version").fetchone()[0], self._schema.version
        if version > known:
            why = f"its tables have version {version}, this release reads up to {known}"
            raise errors.newer(self.kind, self.address, why)


def count_tables(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return found
