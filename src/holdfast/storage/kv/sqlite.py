"""A store in a SQLite database file: the embedded default.

It uses a write-ahead log with full synchronisation: a commit is on disk when it returns. Opened `exclusive`, a lock
file beside the database keeps other processes out. Opened `shared`, several processes write, one transaction at a time;
a transaction takes SQLite's write lock when it begins, so that commits have one order and no reader sees a gap.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.base.steps import step
from holdfast.storage.files.disk import make_directories, sync
from holdfast.storage.files.lock import FileLock
from holdfast.storage.kv import errors
from holdfast.storage.kv.sql import check_statement, ended_transaction
from holdfast.storage.kv.sqlite_errors import is_busy, is_storage_failure, may_have_happened
from holdfast.storage.kv.sqlite_reader import SqliteReader, count_tables
from holdfast.storage.kv.store import Mode, Row, Schema, WriteBatch, Writers
from holdfast.storage.kv.transaction import SPILL_BYTES, BufferedTransaction, PendingWrites, Ticket, Turn

_DURABLE = ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON")


class SqliteStore(SqliteReader):
    """A database file with its log, and with a lock file if it is opened `exclusive`.

    Guarantees: only one process writes at a time; the file and its directory entry are durable.
    Does not guarantee: anything on a network file system, which has no shared memory for SQLite's log.
    """

    max_transaction = None
    durability = "each commit is synced to the disk before it returns"

    def __init__(self, path: str, schema: Schema, mode: Mode = "exclusive") -> None:
        self.writers: Writers = "exclusive" if mode == "exclusive" else "shared"
        self.turn = Turn()
        self._writer: sqlite3.Connection | None = None
        """None before it is opened, and after it is closed."""
        self._is_lost: str | None = None
        self._lock: FileLock | None = None
        super().__init__(path, schema, mode)

    def begin(self) -> SqliteTransaction:
        self.check_open()
        return SqliteTransaction(self)

    def close(self) -> None:
        # Does not wait for a transaction of another thread: that transaction ends with an error.
        super().close()
        if self._lock is not None:
            self._lock.close()

    def check_open(self) -> None:
        if self._is_lost is not None:
            raise self._errors.lost(self.address, self._is_lost)
        super().check_open()

    @property
    def writer(self) -> sqlite3.Connection:
        """The writing connection. Only the transaction that has its turn may use it."""
        self.check_open()
        if self._writer is None:
            raise errors.closed(self.kind, self.address)
        return self._writer

    def send(self, batch: WriteBatch) -> None:
        """Write to SQLite's open transaction."""
        writer = self.writer
        with self.errors_explained():
            for space, changes in batch.items():
                statements = self._statements[space]
                puts, deletes = _split(changes)
                # In key order, so that each page of the B-tree is visited once.
                if puts:
                    writer.executemany(statements.put, sorted(puts))
                if deletes:
                    writer.executemany(statements.delete, [(key,) for key in sorted(deletes)])

    def apply(self, batch: WriteBatch) -> None:
        writer = self.writer
        self.send(batch)
        try:
            with step("sqlite.commit"):
                writer.execute("COMMIT")
        except sqlite3.Error as error:
            if may_have_happened(error):
                self._is_lost = str(error)
            raise self._errors.of_commit(error, self.address) from error

    def undo(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):
                self._writer.rollback()

    def raise_storage_failure(self, error: sqlite3.Error) -> None:
        """Raise our error if the database file or the disk caused the failure, rather than the statement."""
        if is_storage_failure(error):
            raise self._errors.explained(error, self.address) from error

    def _open(self) -> None:
        folder = os.path.dirname(self._path)
        with errors.disk_errors(self.kind, self.address):
            make_directories(folder)
        if self.writers == "exclusive":
            self._lock = FileLock(self._path + ".lock", self.address, self.kind)
        with self.errors_explained():
            self._writer = self._connect()
            self._prepare(self._writer)
        # Each time, since the process that created the file may have died before the sync.
        with errors.disk_errors(self.kind, self.address):
            sync(folder)

    def _prepare(self, writer: sqlite3.Connection) -> None:
        self._check_ours(writer)
        writer.execute(f"PRAGMA page_size = {self._schema.page_size}")  # a file that is there keeps its own
        if _switched_to_log(writer, self._patience) != "wal":
            raise self._errors.no_log(self.address)
        for setting in (*_DURABLE, *self._schema.settings):
            writer.execute(f"PRAGMA {setting}")
        if count_tables(writer):
            return
        writer.execute("BEGIN IMMEDIATE")
        try:
            if not count_tables(writer):  # otherwise another process has created them meanwhile
                for statements in self._statements.values():
                    writer.execute(statements.create)
                writer.execute(f"PRAGMA application_id = {self._schema.application_id}")
                writer.execute(f"PRAGMA user_version = {self._schema.version}")
                with step("sqlite.create"):
                    writer.execute("COMMIT")
        finally:
            writer.rollback()
        self._check_ours(writer)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """The writing connection if no transaction is open, because a commit empties the page caches of all others."""
        self.check_open()
        ticket = Ticket()
        try:
            if self.turn.try_take(ticket):
                yield self.writer
                return
        finally:
            self.turn.give_back(ticket)
        with self._own_reader() as reader:
            yield reader

    def _connections(self) -> list[sqlite3.Connection]:
        return [*super()._connections(), *([] if self._writer is None else [self._writer])]

    def _forget(self) -> None:
        super()._forget()
        self._writer = None


class SqliteTransaction(BufferedTransaction):
    """A transaction of SQLite. Writes are held in memory, and sent to SQLite beyond a few megabytes."""

    _store: SqliteStore

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self._has_spilled = False

    def get(self, space: str, key: bytes) -> bytes | None:
        self._take_turn()
        if self._has_spilled:
            return self._store.get(space, key)
        with self._store.errors_explained():
            return self._store.get_from(self._store.writer, space, key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._take_turn()
        if self._has_spilled:
            return self._store.get_many(space, keys)
        with self._store.errors_explained():
            return self._store.get_many_from(self._store.writer, space, keys)

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        self._take_turn()
        if self._has_spilled or limit is None:
            return self._store.scan(space, start, end, limit)
        with self._store.errors_explained():
            return iter(self._store.select(self._store.writer, space, start, end, limit).fetchall())

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        check_statement(sql, self._store.address)
        self._take_turn()
        self._check_begun()
        try:
            found = self._store.writer.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            self._store.raise_storage_failure(error)
            self._check_begun()
            raise
        self._check_begun()
        return found

    def _begin(self) -> None:
        with self._store.errors_explained():
            self._store.writer.execute("BEGIN IMMEDIATE")

    def _add(self, batch: WriteBatch) -> None:
        self._pending.add(batch)
        if self._pending.size > SPILL_BYTES:
            self._check_begun()
            self._has_spilled = True
            pending, self._pending = self._pending, PendingWrites()
            self._store.send(pending.batch)

    def _apply(self) -> None:
        self._check_begun()
        self._store.apply(self._pending.batch)

    def _undo(self) -> None:
        super()._undo()
        self._store.undo()

    def _check_begun(self) -> None:
        """`Invalid` if a failed statement has ended the transaction: later statements would be committed one by one."""
        if not self._store.writer.in_transaction:
            why = "a statement has rolled it back, as INSERT OR ROLLBACK does"
            raise ended_transaction(why, self._store.address)


def _switched_to_log(writer: sqlite3.Connection, patience: float) -> str:
    """Switch to the write-ahead log, and return the new mode. Retries, because SQLite itself does not wait here."""
    deadline = time.monotonic() + patience
    while True:
        try:
            mode: str = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return mode


def _split(changes: dict[bytes, bytes | None]) -> tuple[Iterable[tuple[bytes, bytes | None]], list[bytes]]:
    """Values to put, and keys to delete; usually there are no deletes."""
    if None not in changes.values():
        return changes.items(), []
    puts = [(key, value) for key, value in changes.items() if value is not None]
    return puts, [key for key, value in changes.items() if value is None]
