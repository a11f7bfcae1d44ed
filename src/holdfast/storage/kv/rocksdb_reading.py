"""A RocksDB database that is open: reads and scans of it, and what its errors mean.

rocksdict is used in raw mode: nothing is pickled.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, RdictIter, ReadOptions

from holdfast.base import forks
from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.storage.kv.backend import Space
from holdfast.storage.kv.prefixes import end_of
from holdfast.storage.kv.rocksdb_directory import address_of

SPACES: dict[Space, bytes] = {"meta": b"m", "results": b"r"}
_SHOWN = 300  # characters of an error's text


class Database:
    """The database in a directory. `at` is the index's own directory, for messages."""

    def __init__(self, path: str, at: str, *, read_only: bool = False) -> None:
        self._at = at
        self._scans: weakref.WeakSet[Scan] = weakref.WeakSet()
        options = Options(raw_mode=True)
        options.create_if_missing(not read_only)
        # A commit that was cut short is forgiven at the end of the log; damage anywhere else is an error. The default,
        # point in time, would drop everything from the damage on, acknowledged commits included, without a word.
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_keep_log_file_num(4)  # texts for people, one more with every opening
        access = AccessType.read_only() if read_only else AccessType.read_write()
        try:
            self._raw: Rdict | None = Rdict(path, options, access_type=access)
        except Exception as error:
            raise explained(error, "opening", at) from error
        forks.opened(self)

    @property
    def is_closed(self) -> bool:
        return self._raw is None

    @property
    def raw(self) -> Rdict:
        if self._raw is None:
            raise forks.closed_or_forked(address_of(self._at))
        return self._raw

    def read(self, space: Space, key: bytes) -> bytes | None:
        raw = self.raw
        try:
            found: bytes | None = raw.get(SPACES[space] + key)
        except Exception as error:
            raise explained(error, "reading", self._at) from error
        return found

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As of the moment of this call, whatever is committed before the scan ends."""
        scan = Scan(self.raw, SPACES[space] + prefix, self._at)
        self._scans.add(scan)
        return scan

    def close(self) -> None:
        """Close it and every scan: one that is left open would keep it locked."""
        forks.closed(self)
        for scan in list(self._scans):
            scan.end()
        raw, self._raw = self._raw, None
        if raw is not None:
            with contextlib.suppress(Exception):  # it says again what failed before
                raw.close()

    def forget_in_child(self) -> None:
        """Closing would write to the parent's files, and wait for threads that only the parent has."""
        for scan in list(self._scans):
            scan.forget_in_child()
        forks.leak(self._raw)
        self._raw = None


class Scan:
    """Keys and values in order, from a snapshot.

    rocksdict's own `items` ends without a word at a damaged block, as if there was nothing more: hence the iterator
    underneath it, whose status is asked for at the end.
    """

    def __init__(self, db: Rdict, prefix: bytes, at: str) -> None:
        self._at = at
        self._iterator: RdictIter | None = None
        self._is_over = False
        end = end_of(prefix)
        assert end is not None  # the space's letter comes first
        # Kept as long as the iterator: it has only a pointer to the bytes of the bound, and would read whatever is
        # there once they are gone.
        self._options = ReadOptions()
        self._options.set_iterate_upper_bound(end)
        self._iterator = db.snapshot().iter(self._options)
        self._iterator.seek(prefix)

    def __iter__(self) -> Scan:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._is_over:
            raise StopIteration
        iterator = self._iterator
        if iterator is None:
            raise Invalid(
                "The index was closed, or opened anew, in the middle of this scan.",
                code="index.scan-ended",
                about=address_of(self._at),
                next_step="scan again",
            )
        if iterator.valid():
            found: tuple[bytes, bytes] = iterator.key()[1:], iterator.value()
            iterator.next()
            return found
        try:
            iterator.status()
        except Exception as error:
            raise explained(error, "reading", self._at) from error
        self._is_over = True
        self._iterator = None
        raise StopIteration

    def end(self) -> None:
        """Let go of the database. What was not read yet is an error, not the end of the keys."""
        self._iterator = None

    def forget_in_child(self) -> None:
        forks.leak(self._iterator)
        self.end()


def explained(error: Exception, doing: str, at: str) -> HoldfastError:
    """rocksdict raises `Exception` for everything; the text begins with the kind of RocksDB's status."""
    text = str(error)
    if text.startswith("Corruption"):
        return Corrupt(
            f"The index is damaged; found while {doing}: {shown(error)}",
            code="index.damaged",
            about=address_of(at),
            unchanged="the index; nothing of this session was applied",
            next_step="restore the directory from a backup, or move it away and start over: the sources are then "
            "read from their beginning",
        )
    return Unavailable(
        f"RocksDB failed while {doing}: {shown(error)}",
        code="index.unavailable",
        about=address_of(at),
        unchanged="the index; nothing of this session was applied",
        next_step="see that the disk has room and can be written to; then try again",
    )


def shown(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
