"""SQLite's errors as `HoldfastError`s, with the next step."""

from __future__ import annotations

import sqlite3

import msgspec

from holdfast.errors import Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.storage.kv.store import Kind

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NEXT = {
    sqlite3.SQLITE_FULL: "make room on the disk, then do it again",
    sqlite3.SQLITE_READONLY: "allow this user to write the file and its directory, then open it again",
    sqlite3.SQLITE_CANTOPEN: "allow this user to read and write the file and its directory, then open it again",
    sqlite3.SQLITE_PERM: "allow this user to read and write the file and its directory, then open it again",
    sqlite3.SQLITE_IOERR: "look at the disk and at the system's log, then open it again",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteErrors(msgspec.Struct, frozen=True):
    """The errors of one kind of store, with its texts."""

    kind: Kind
    when_busy: str
    when_damaged: str
    after_a_commit: str
    """What to read to find out whether a commit took effect."""

    def explained(self, error: sqlite3.Error, address: str) -> HoldfastError:
        """The `HoldfastError` for an error of SQLite, with the next step."""
        code = _code(error)
        if code in _DAMAGED:
            return Corrupt(
                f"{address} is damaged, or is not a SQLite database: {error}.",
                code=f"{self.kind}.database",
                about=address,
                unchanged="the file",
                next_step=self.when_damaged,
            )
        if isinstance(error, sqlite3.ProgrammingError):
            return Invalid(
                f"{address} was closed meanwhile.", code=f"{self.kind}.closed", about=address, next_step="open it again"
            )
        next_step = self.when_busy if code in _BUSY else _NEXT.get(code, "read SQLite's message, then try again")
        return Unavailable(
            f"{address}: SQLite says: {error}.",
            code=f"{self.kind}.unavailable",
            about=address,
            unchanged="what was committed before",
            next_step=next_step,
        )

    def of_commit(self, error: sqlite3.Error, address: str) -> HoldfastError:
        if not may_have_happened(error):
            return self.explained(error, address)
        return OutcomeUnknown(
            f"{address}: the disk failed during a commit: {error}. "
            f"The commit may or may not be there when the {self.kind} is opened again.",
            code=f"{self.kind}.commit-unknown",
            about=address,
            unchanged="what was committed before",
            next_step=f"look at the disk, open the {self.kind} again and read {self.after_a_commit}",
        )

    def lost(self, address: str, why: str) -> Unavailable:
        return Unavailable(
            f"{address}: the disk failed during an earlier commit ({why}), and since then its content is unknown.",
            code=f"{self.kind}.lost",
            about=address,
            unchanged="the file",
            next_step=f"look at the disk, then open the {self.kind} again",
        )

    def foreign(self, address: str) -> Invalid:
        return Invalid(
            f"{address} is a SQLite database of another application.",
            code=f"{self.kind}.foreign",
            about=address,
            unchanged="the file",
            next_step="use another path",
        )

    def no_log(self, address: str) -> Unavailable:
        return Unavailable(
            f"{address}: SQLite cannot keep a write-ahead log there.",
            code=f"{self.kind}.no-log",
            about=address,
            unchanged="the file",
            next_step=f"put the {self.kind} on a local file system",
        )


ERRORS: dict[Kind, SqliteErrors] = {
    "index": SqliteErrors(
        "index",
        when_busy="close the other programs that have the file open, then try again",
        when_damaged="move it away and restore a copy, or begin with a new one and let the sources start over",
        after_a_commit="its checkpoints",
    ),
    "store": SqliteErrors(
        "store",
        when_busy="let the other writer finish, then try again",
        when_damaged="move it away and restore a copy",
        after_a_commit="the stream's version or the projection's position",
    ),
}


def may_have_happened(error: sqlite3.Error) -> bool:
    """Whether a failed commit may turn out to be committed: it was written to the log, but the sync failed."""
    return _code(error) == sqlite3.SQLITE_IOERR


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in _BUSY


def is_storage_failure(error: sqlite3.Error) -> bool:
    """Whether the disk or the file caused the error, rather than the statement."""
    return _code(error) in (*_BUSY, *_NEXT, *_DAMAGED)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
