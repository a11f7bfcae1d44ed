"""In a SQLite database: the embedded default. Several processes may have it open, and append and project side by side.

Durable by write-ahead log with full synchronisation: a commit is on disk when it returns. Transactions are SQLite's
own and begin by taking the write lock, so that positions are given out in the order of commits and no reader ever sees
a gap. Reads never wait for a writer: while there is one, they have connections of their own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from holdfast.base.steps import step
from holdfast.errors import Invalid
from holdfast.index.sqlite_connections import Connections
from holdfast.index.sqlite_errors import OF_A_STORE, is_busy, is_of_the_medium, may_have_happened
from holdfast.projections.backend import SPACES, Change, Row, Space
from holdfast.projections.pending import Pending, closed, nested
from holdfast.projections.records import newer
from holdfast.storage.files.lock import make_directories, sync_directory

APPLICATION_ID = 0x48664573  # "HfEs", in the file's header: told from other people's databases
SCHEMA = 1
PATIENCE = 30.0
"""How many seconds to wait for another process's transaction."""
_OF_READERS = ("query_only = ON", "cache_size = -16384")
_DURABLE = ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON")
# A batch touches a page per stream: they must fit into the cache, and the log is folded back after several batches.
_FAST = ("cache_size = -65536", "wal_autocheckpoint = 8192")
# The first word of a statement, after comments.
_OF_TRANSACTIONS = re.compile(
    r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*(?:BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|DETACH)\b", re.S | re.I
)
_AT_ONCE = 500
"""Keys in one SELECT."""

# The tables have a name of ours before theirs: a read model's tables lie beside them.
_READ = {space: f"SELECT value FROM holdfast_{space} WHERE key = ?" for space in SPACES}
_READ_MANY = {space: f"SELECT key, value FROM holdfast_{space} WHERE key IN " for space in SPACES}
_SCAN = {space: f"SELECT key, value FROM holdfast_{space} WHERE key >= ? ORDER BY key LIMIT ?" for space in SPACES}
_SCAN_TO = {
    space: f"SELECT key, value FROM holdfast_{space} WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
    for space in SPACES
}
_PUT = {
    space: f"INSERT INTO holdfast_{space} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    for space in SPACES
}
_DELETE = {space: f"DELETE FROM holdfast_{space} WHERE key = ?" for space in SPACES}


class SqliteBackend:
    """A database file with its log beside it.

    Guarantees: of all processes that have it open one writes at a time; file and directory entry are durable.
    Does not guarantee: anything on a network file system, which has no shared memory for SQLite's log.
    """

    is_persistent = True
    has_sql = True

    def __init__(self, path: str) -> None:
        self.address = f"sqlite://{quote(path)}"
        self._path = os.path.realpath(path)
        self._writing = threading.Lock()
        self.owner: int | None = None
        """The thread that has a transaction open."""
        self._connections = Connections(self._path, PATIENCE, of_readers=_OF_READERS)
        self._is_lost: str | None = None
        make_directories(os.path.dirname(self._path), self.address)
        try:
            with self.errors_explained():
                self._prepare(self._connections.open_writer())
            # Each time, since the process that made the file may have died before it came to this.
            sync_directory(os.path.dirname(self._path), self.address)
        except BaseException:
            self.close()
            raise
        _open.add(self)

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._warm_reader() as reader, self.errors_explained():
            return read_from(reader, space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        with self._warm_reader() as reader, self.errors_explained():
            return scan_from(reader, space, start, end, limit)

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        with self._reader() as reader:
            return reader.execute(sql, parameters).fetchall()

    def begin(self) -> SqliteTransaction:
        if self.owner == threading.get_ident():
            raise nested(self.address)
        self._writing.acquire()
        try:
            with self.errors_explained():
                writer = self._usable_writer()
                writer.execute("BEGIN IMMEDIATE")
            self.owner = threading.get_ident()
            return SqliteTransaction(self, writer)
        except BaseException:
            if self._connections.writer is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connections.writer.rollback()  # it may have begun: ^C is told of when it returns
            self.ended()
            raise

    def ended(self) -> None:
        """A transaction is over, however it ended."""
        self.owner = None
        self._writing.release()

    def commit(self, writer: sqlite3.Connection) -> None:
        try:
            with step("sqlite.commit"):
                writer.execute("COMMIT")
        except sqlite3.Error as error:
            if may_have_happened(error):
                self._is_lost = str(error)
            raise OF_A_STORE.of_commit(error, self.address) from error

    def close(self) -> None:
        _open.discard(self)
        self._connections.close()

    def forget_in_child(self) -> None:
        """In a forked child: leave the parent's connections alone, for good. Closing them would undo its work."""
        self._connections.forget_in_child()
        self._writing, self.owner = threading.Lock(), None

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OF_A_STORE.explained(error, self.address) from error

    def _prepare(self, writer: sqlite3.Connection) -> None:
        _check_ours(writer, self.address)
        if _switched_to_log(writer) != "wal":
            raise OF_A_STORE.no_log(self.address)
        for setting in (*_DURABLE, *_FAST):
            writer.execute(f"PRAGMA {setting}")
        if _tables(writer):
            return
        writer.execute("BEGIN IMMEDIATE")
        try:
            if _tables(writer):  # made by another process meanwhile
                return
            for space in SPACES:
                columns = "key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL"
                writer.execute(f"CREATE TABLE holdfast_{space} ({columns}) WITHOUT ROWID")
            writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            writer.execute(f"PRAGMA user_version = {SCHEMA}")
            with step("sqlite.create"):
                writer.execute("COMMIT")
        finally:
            writer.rollback()
        _check_ours(writer, self.address)

    @contextlib.contextmanager
    def _warm_reader(self) -> Iterator[sqlite3.Connection]:
        """The writer's connection if nobody writes: every commit makes the others forget the pages they have read."""
        if not self._writing.acquire(blocking=False):
            with self._reader() as reader:
                yield reader
            return
        try:
            yield self._usable_writer()
        finally:
            self._writing.release()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        self._usable_writer()
        with self._connections.reader() as reader:
            yield reader

    def _usable_writer(self) -> sqlite3.Connection:
        if self._is_lost is not None:
            raise OF_A_STORE.lost(self.address, self._is_lost)
        if self._connections.writer is None:
            raise closed(self.address)
        return self._connections.writer


class SqliteTransaction:
    """Holds SQLite's write lock from its beginning."""

    def __init__(self, backend: SqliteBackend, writer: sqlite3.Connection) -> None:
        self._backend = backend
        self._writer = writer
        self._pending: Pending | None = Pending()

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._backend.errors_explained():
            return read_from(self._writer, space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        with self._backend.errors_explained():
            return scan_from(self._writer, space, start, end, limit)

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        if _ends_transactions(sql):
            raise self._ended(f"{sql.strip()[:80]!r} is not for handlers")
        self._check_open()
        try:
            found = self._writer.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            if is_of_the_medium(error):
                raise OF_A_STORE.explained(error, self._backend.address) from error
            self._check_open()
            raise
        self._check_open()
        return found

    def write(self, changes: Iterable[Change]) -> None:
        assert self._pending is not None
        self._pending.add(changes)

    def commit(self) -> None:
        if self._pending is None:
            return
        try:
            self._check_open()
            with self._backend.errors_explained():
                # In the order of their keys: each page of the tree is then visited once.
                for space, puts in self._pending.puts.items():
                    self._writer.executemany(_PUT[space], sorted(puts.items()))
                for space, removals in self._pending.removals.items():
                    self._writer.executemany(_DELETE[space], [(key,) for key in sorted(removals)])
            self._backend.commit(self._writer)
        finally:
            self.rollback()

    def _check_open(self) -> None:
        """A statement can end the transaction by failing: what came after it would be committed by itself."""
        if not self._writer.in_transaction:
            raise self._ended("a statement has rolled it back, as INSERT OR ROLLBACK does")

    def _ended(self, why: str) -> Invalid:
        return Invalid(
            f"The transaction of a batch begins and ends with the batch: {why}.",
            code="projection.sql-transaction",
            about=self._backend.address,
            unchanged="the read model and the cursors",
            next_step="let statements fail (INSERT OR IGNORE, ON CONFLICT) without ending the transaction",
        )

    def rollback(self) -> None:
        if self._pending is None:
            return
        self._pending = None
        try:
            with contextlib.suppress(sqlite3.Error):
                self._writer.rollback()
        finally:
            self._backend.ended()

    def __enter__(self) -> SqliteTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        self.commit() if kind is None else self.rollback()


@functools.lru_cache(1024)
def _ends_transactions(sql: str) -> bool:
    return _OF_TRANSACTIONS.match(sql) is not None


def _switched_to_log(writer: sqlite3.Connection) -> str:
    """The mode it is in now. SQLite does not wait by itself when another process switches at the same moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            mode: str = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return mode


def read_from(connection: sqlite3.Connection, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
    if len(keys) == 1:
        row = connection.execute(_READ[space], keys).fetchone()
        return [None if row is None else row[0]]
    found: dict[bytes, bytes] = {}
    starts = range(0, len(keys), _AT_ONCE)
    is_ours = len(starts) > 1 and not connection.in_transaction
    if is_ours:
        connection.execute("BEGIN")
    try:
        for start in starts:
            some = keys[start : start + _AT_ONCE]
            found.update(connection.execute(_READ_MANY[space] + f"({','.join('?' * len(some))})", some))
    finally:
        if is_ours:
            connection.rollback()
    return [found.get(key) for key in keys]


def scan_from(
    connection: sqlite3.Connection, space: Space, start: bytes, end: bytes | None, limit: int | None
) -> list[Row]:
    most = -1 if limit is None else limit
    if end is None:
        return connection.execute(_SCAN[space], (start, most)).fetchall()
    return connection.execute(_SCAN_TO[space], (start, end, most)).fetchall()


def _tables(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return found


def _check_ours(connection: sqlite3.Connection, address: str) -> None:
    if _tables(connection) and connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise OF_A_STORE.foreign(address)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise newer(address, f"its tables have version {version}, this release reads up to {SCHEMA}")


_open: weakref.WeakSet[SqliteBackend] = weakref.WeakSet()


def _forget_all() -> None:
    for backend in list(_open):
        backend.forget_in_child()


os.register_at_fork(after_in_child=_forget_all)
