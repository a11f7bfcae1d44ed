"""What SQLite's errors mean for whoever has to do something about them."""

from __future__ import annotations

import sqlite3

from holdfast.errors import Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.sources.records import newer as newer_release

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "close whatever else has the file open, then try again",
    sqlite3.SQLITE_LOCKED: "close whatever else has the file open, then try again",
    sqlite3.SQLITE_FULL: "make room on the disk, then do the change again",
    sqlite3.SQLITE_READONLY: "allow this user to write the file and its directory, then open it again",
    sqlite3.SQLITE_CANTOPEN: "allow this user to read and write the file and its directory, then open it again",
    sqlite3.SQLITE_PERM: "allow this user to read and write the file and its directory, then open it again",
    sqlite3.SQLITE_IOERR: "look at the disk and at the system's log, then open it again",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def explained(error: sqlite3.Error, address: str) -> HoldfastError:
    """The error of our tree for one of SQLite's, with what to do next."""
    code = _code(error)
    if code in _DAMAGED:
        return Corrupt(
            f"{address} is damaged, or is not a SQLite database: {error}.",
            code="index.database",
            about=address,
            unchanged="the file",
            next_step="move it away and restore a copy, or begin with a new one and let the sources start over",
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return Invalid(
            f"{address} was closed meanwhile.", code="index.closed", about=address, next_step="open it again"
        )
    return Unavailable(
        f"{address}: SQLite says: {error}.",
        code="index.unavailable",
        about=address,
        unchanged="what was committed before",
        next_step=_UNAVAILABLE.get(code, "look at what SQLite says, then try again"),
    )


def may_have_happened(error: sqlite3.Error) -> bool:
    """Whether a commit that failed so may be found committed later: written to the log, and the sync of it failed."""
    return _code(error) == sqlite3.SQLITE_IOERR


def of_commit(error: sqlite3.Error, address: str) -> HoldfastError:
    if not may_have_happened(error):
        return explained(error, address)
    return OutcomeUnknown(
        f"{address}: the disk failed during a commit: {error}. It may be there or not when the index is opened again.",
        code="index.commit-unknown",
        about=address,
        unchanged="what was committed before",
        next_step="look at the disk, open the index again and read its checkpoints",
    )


def lost(address: str, why: str) -> Unavailable:
    return Unavailable(
        f"{address}: the disk failed during an earlier commit ({why}), and what it holds is not known since.",
        code="index.lost",
        about=address,
        unchanged="the file",
        next_step="look at the disk, then open the index again",
    )


def foreign(address: str) -> Invalid:
    return Invalid(
        f"{address} is a SQLite database of something else.",
        code="index.foreign",
        about=address,
        unchanged="the file",
        next_step="use another path",
    )


def newer(address: str, version: int, known: int) -> Invalid:
    return newer_release(address, f"its tables have version {version}, this release reads up to {known}")


def no_log(address: str) -> Unavailable:
    return Unavailable(
        f"{address}: SQLite cannot keep a write-ahead log there.",
        code="index.no-log",
        about=address,
        unchanged="the file",
        next_step="put the index on a local file system",
    )


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
