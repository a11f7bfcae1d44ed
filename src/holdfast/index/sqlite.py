"""In a SQLite database: the embedded default.

Durable by write-ahead log with full synchronisation: a commit is on disk when it returns. Reads have connections of
their own, so that they see what is committed and never wait for the session that is being written.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from holdfast.base import forks
from holdfast.base.steps import step
from holdfast.index.records import newer
from holdfast.index.sqlite_connections import Connections
from holdfast.index.sqlite_errors import OF_AN_INDEX, may_have_happened
from holdfast.storage.files.lock import FileLock, make_directories, sync_directory
from holdfast.storage.kv.backend import Changes, Space

APPLICATION_ID = 0x48664978  # "HfIx", in the file's header: told from other people's databases
SCHEMA = 1
PATIENCE = 5.0
"""How many seconds to wait for a lock that somebody other than Holdfast has on the file."""
READ: dict[Space, str] = {
    "meta": "SELECT value FROM meta WHERE key = ?",
    "results": "SELECT value FROM results WHERE key = ?",
}
SCAN: dict[Space, str] = {
    "meta": "SELECT key, value FROM meta WHERE key >= ? ORDER BY key",
    "results": "SELECT key, value FROM results WHERE key >= ? ORDER BY key",
}
# Changes go in as they are: the numbers pass over the first member, which is the space, and name the last one always.
_PUT: dict[Space, str] = {
    "meta": "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    "results": "INSERT INTO results VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
}
_DELETE: dict[Space, str] = {
    "meta": "DELETE FROM meta WHERE key = ?",
    "results": "DELETE FROM results WHERE key = ?",
}


class SqliteBackend:
    """A database file, with its log and a lock file beside it.

    Guarantees: one process has it open at a time, whatever links lead to it; file and directory entry are durable.
    Does not guarantee: anything on a network file system, which has no shared memory for SQLite's log.
    """

    is_persistent = True

    def __init__(self, path: str) -> None:
        self.address = f"sqlite://{quote(path)}"
        self._path = os.path.realpath(path)
        self._connections = Connections(self._path, PATIENCE)
        self._is_lost: str | None = None
        make_directories(os.path.dirname(self._path), self.address)
        self._lock = FileLock(self._path + ".lock", self.address)
        try:
            with self._errors_explained():
                self._prepare(self._connections.open_writer())
            # Each time, since the process that made the file may have died before it came to this.
            sync_directory(os.path.dirname(self._path), self.address)
        except BaseException:
            self.close()
            raise
        forks.opened(self)

    def read(self, space: Space, key: bytes) -> bytes | None:
        with self._reader() as reader:
            row = reader.execute(READ[space], (key,)).fetchone()
        return None if row is None else row[0]

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._reader() as reader:
            rows = reader.execute(SCAN[space], (prefix,))
            try:
                for row in rows:
                    if not row[0].startswith(prefix):
                        return
                    yield row
                    self._usable_writer()  # closed meanwhile, or this is a forked child
            finally:
                with contextlib.suppress(sqlite3.ProgrammingError):  # closed meanwhile, with the whole index
                    rows.close()

    def write(self, changes: Changes) -> None:
        writer = self._usable_writer()
        with self._errors_explained():
            if not writer.in_transaction:
                writer.execute("BEGIN IMMEDIATE")
            for space, of_space in changes.items():
                puts, removals = _parted(of_space)
                if puts:
                    writer.executemany(_PUT[space], puts.items())
                if removals:
                    writer.executemany(_DELETE[space], removals)

    def commit(self) -> None:
        writer = self._usable_writer()
        if not writer.in_transaction:
            return
        try:
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            explained = OF_AN_INDEX.of_commit(error, self.address)
            if may_have_happened(error):
                self._is_lost = str(error)
            self.rollback()
            raise explained from error
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        writer = self._connections.writer
        if writer is not None:
            with contextlib.suppress(sqlite3.Error):
                writer.rollback()

    def close(self) -> None:
        forks.closed(self)
        self.rollback()
        self._connections.close()
        self._lock.close()

    def forget_in_child(self) -> None:
        self._connections.forget_in_child()

    def _prepare(self, writer: sqlite3.Connection) -> None:
        tables = writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = writer.execute("PRAGMA application_id").fetchone()[0]
        version = writer.execute("PRAGMA user_version").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise OF_AN_INDEX.foreign(self.address)
        if version > SCHEMA:
            raise newer(self.address, f"its tables have version {version}, this release reads up to {SCHEMA}")
        if writer.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise OF_AN_INDEX.no_log(self.address)
        for setting in ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON"):
            writer.execute(f"PRAGMA {setting}")
        if tables:
            return
        with step("sqlite.create"):
            writer.execute("BEGIN IMMEDIATE")
            for space in READ:
                columns = "key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL"
                writer.execute(f"CREATE TABLE {space} ({columns}) WITHOUT ROWID")
            writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            writer.execute(f"PRAGMA user_version = {SCHEMA}")
            writer.execute("COMMIT")

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        self._usable_writer()
        with self._errors_explained(), self._connections.reader() as reader:
            yield reader

    def _usable_writer(self) -> sqlite3.Connection:
        if self._is_lost is not None:
            raise OF_AN_INDEX.lost(self.address, self._is_lost)
        if self._connections.writer is None:
            raise forks.closed_or_forked(self.address)
        return self._connections.writer

    @contextlib.contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OF_AN_INDEX.explained(error, self.address) from error


def _parted(
    changes: Mapping[bytes, bytes | None],
) -> tuple[Mapping[bytes, bytes | None], list[tuple[bytes]]]:
    """Values to put, and keys to remove; most often there are none of these."""
    removals = [(key,) for key, value in changes.items() if value is None] if None in changes.values() else []
    if not removals:
        return changes, removals
    return {key: value for key, value in changes.items() if value is not None}, removals
