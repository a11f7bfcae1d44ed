"""What SQLite's errors mean for whoever has to do something about them."""

from __future__ import annotations

import sqlite3

from holdfast.errors import Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable

_NEXT = {
    sqlite3.SQLITE_BUSY: "let the other writer finish, then try again",
    sqlite3.SQLITE_LOCKED: "let the other writer finish, then try again",
    sqlite3.SQLITE_FULL: "make room on the disk, then try again",
    sqlite3.SQLITE_READONLY: "allow this user to write the file and its directory, then open it again",
    sqlite3.SQLITE_CANTOPEN: "allow this user to read and write the file and its directory, then open it again",
    sqlite3.SQLITE_PERM: "allow this user to read and write the file and its directory, then open it again",
    sqlite3.SQLITE_IOERR: "look at the disk and at the system's log, then open it again",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def explained(error: sqlite3.Error, address: str) -> HoldfastError:
    """The error of our tree for one of SQLite's, with what to do next."""
    code = code_of(error)
    if code in _DAMAGED:
        return Corrupt(
            f"{address} is damaged, or is not a SQLite database: {error}.",
            code="store.database",
            about=address,
            unchanged="the file",
            next_step="move it away and restore a copy",
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return Invalid(
            f"{address} was closed meanwhile.", code="store.closed", about=address, next_step="open it again"
        )
    return Unavailable(
        f"{address}: SQLite says: {error}.",
        code="store.unavailable",
        about=address,
        unchanged="what was committed before",
        next_step=_NEXT.get(code, "look at what SQLite says, then try again"),
    )


def is_of_the_medium(error: sqlite3.Error) -> bool:
    """Whether the disk or the file is to blame, rather than the statement."""
    return code_of(error) in _NEXT or code_of(error) in _DAMAGED


def may_have_happened(error: sqlite3.Error) -> bool:
    """Whether a commit that failed so may be found committed later: written to the log, and the sync of it failed."""
    return code_of(error) == sqlite3.SQLITE_IOERR


def of_commit(error: sqlite3.Error, address: str) -> HoldfastError:
    if not may_have_happened(error):
        return explained(error, address)
    return OutcomeUnknown(
        f"{address}: the disk failed during a commit: {error}. It may be there or not when the store is opened again.",
        code="store.commit-unknown",
        about=address,
        unchanged="what was committed before",
        next_step="look at the disk, open the store again and read the stream's version or the projection's position",
    )


def lost(address: str, why: str) -> Unavailable:
    return Unavailable(
        f"{address}: the disk failed during an earlier commit ({why}), and what it holds is not known since.",
        code="store.lost",
        about=address,
        unchanged="the file",
        next_step="look at the disk, then open the store again",
    )


def foreign(address: str) -> Invalid:
    return Invalid(
        f"{address} is a SQLite database of something else.",
        code="store.foreign",
        about=address,
        unchanged="the file",
        next_step="use another path",
    )


def no_log(address: str) -> Unavailable:
    return Unavailable(
        f"{address}: SQLite cannot keep a write-ahead log there.",
        code="store.no-log",
        about=address,
        unchanged="the file",
        next_step="put the store on a local file system",
    )


def code_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
