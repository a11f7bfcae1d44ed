"""An index in a RocksDB directory, through rocksdict in raw mode: nothing is pickled.

Both spaces lie in one column family, told apart by the first byte of the key. With two, a quiet one would keep every
log file of the busy one alive, and a crash could find one flushed ahead of the other.

A commit is one write batch, synced before it returns.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence

from rocksdict import DBRecoveryMode, Options, Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

from holdfast.errors import Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.sources.backend import Change, Space
from holdfast.sources.pending import LIMIT, too_large
from holdfast.sources.prefixes import end_of
from holdfast.sources.rocksdb_directory import Claim, in_use
from holdfast.sources.tokens import new_token
from holdfast.steps import step

_SPACES: dict[Space, bytes] = {"meta": b"m", "results": b"r"}
_TOKEN = b"t"
_NOTHING_APPLIED = "the index; nothing of this session was applied"
_SHOWN = 300  # characters of an error's text


class RocksdbBackend:
    """One index in one directory, for one process at a time; a second opening is refused, within a process too.

    A transaction is kept in memory, up to `limit` bytes; `write` refuses what goes beyond it, and then all of it.
    Durable when `commit` returns, power loss included, where the disk honours a sync.
    """

    is_persistent = True

    def __init__(self, path: str, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._claim = Claim(path)
        self.address = f"rocksdb://{self._claim.path}"
        self._batch: WriteBatch | None = None
        self._failed: HoldfastError | None = None
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._closed = False
        self._synced = WriteOptions()
        self._synced.sync = True
        self._db: Rdict | None = None
        try:
            self._opened()
        except BaseException:
            self.close()
            raise

    def read(self, space: Space, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._opened().get(_SPACES[space] + key)
        except Exception as error:
            raise self._explained(error, "reading") from error
        return found

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As of the moment of this call, whatever is committed before the scan ends."""
        scan = _Scan(self, self._opened(), _SPACES[space] + prefix)
        self._scans.add(scan)
        return scan

    def write(self, changes: Sequence[Change]) -> None:
        self._opened()
        if self._failed:
            raise self._failed
        if self._batch is None:
            self._batch = WriteBatch(raw_mode=True)
        batch = self._batch
        put, delete = batch.put, batch.delete
        limit = self._limit - batch.size_in_bytes()
        for space, key, value in changes:
            if value is None:
                delete(_SPACES[space] + key)
                limit -= len(key)
            else:
                put(_SPACES[space] + key, value)
                limit -= len(key) + len(value)
            if limit < 0:
                self._batch = None
                self._failed = too_large(self._limit, self.address)
                raise self._failed

    def commit(self) -> None:
        batch, failed = self._batch, self._failed
        self.rollback()
        db = self._opened()
        if failed:
            raise failed
        if batch is None:
            return
        token = new_token()
        batch.put(_TOKEN, token)
        try:
            with step("rocksdb.commit"):
                db.write(batch, self._synced)
        except Exception as error:
            self._settle(token, error)

    def rollback(self) -> None:
        self._batch = None
        self._failed = None

    def close(self) -> None:
        self._closed = True
        self.rollback()
        self._shut()
        self._claim.release()

    def _settle(self, token: bytes, error: Exception) -> None:
        """Find out what became of a failed write, by opening the database anew.

        A batch whose sync failed may lie in the log all the same, and would come back whenever the log is next read.
        So it is read at once: recovery either makes the batch durable, or leaves it out for good.
        """
        self._shut()
        try:
            found = self._opened().get(_TOKEN)
        except Exception as second:
            raise OutcomeUnknown(
                f"RocksDB failed to commit, and cannot be opened to find out whether it did: {_text(error)}; then: "
                f"{_text(second)}",
                code="index.outcome-unknown",
                about=self.address,
                next_step="make room on the disk, or repair what the message says; then open the index and look at its "
                "checkpoints before anything is committed again",
            ) from error
        if found != token:
            raise self._explained(error, "committing") from error

    def _opened(self) -> Rdict:
        """The database; opened again if it had to be closed after a failure."""
        if self._closed:
            raise Invalid("The index was closed.", code="index.closed", about=self.address)
        if self._db is None:
            try:
                with step("rocksdb.open"):
                    self._db = Rdict(self._claim.path, _options())
            except Exception as error:
                raise self._explained(error, "opening") from error
        return self._db

    def _shut(self) -> None:
        """Close the database and every scan: one that is left open would keep it locked."""
        for scan in list(self._scans):
            scan.end()
        if self._db is not None:
            with contextlib.suppress(Exception):  # it says again what failed before
                self._db.close()
            self._db = None

    def _explained(self, error: Exception, doing: str) -> HoldfastError:
        """rocksdict raises `Exception` for everything; the text begins with the kind of RocksDB's status."""
        if isinstance(error, HoldfastError):
            return error
        text = str(error)
        if "lock" in text.lower() and "LOCK" in text:
            return in_use(self._claim.path)
        if text.startswith("Corruption"):
            return Corrupt(
                f"The index is damaged; found while {doing}: {_text(error)}",
                code="index.damaged",
                about=self.address,
                unchanged=_NOTHING_APPLIED,
                next_step="restore the directory from a backup, or move it away and start over: the sources are then "
                "read from their beginning",
            )
        return Unavailable(
            f"RocksDB failed while {doing}: {_text(error)}",
            code="index.unavailable",
            about=self.address,
            unchanged=_NOTHING_APPLIED,
            next_step="see that the disk has room and can be written to; then try again",
        )


class _Scan:
    """Keys and values in order, from a snapshot.

    rocksdict's own `items` ends without a word at a damaged block, as if there was nothing more: hence the iterator
    underneath it, whose status is asked for at the end.
    """

    def __init__(self, backend: RocksdbBackend, db: Rdict, prefix: bytes) -> None:
        self._backend = backend
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

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._is_over:
            raise StopIteration
        iterator = self._iterator
        if iterator is None:
            raise Invalid(
                "The index was closed, or opened anew, in the middle of this scan.",
                code="index.scan-ended",
                about=self._backend.address,
                next_step="scan again",
            )
        if iterator.valid():
            found: tuple[bytes, bytes] = iterator.key()[1:], iterator.value()
            iterator.next()
            return found
        try:
            iterator.status()
        except Exception as error:
            raise self._backend._explained(error, "reading") from error
        self._is_over = True
        self._iterator = None
        raise StopIteration

    def end(self) -> None:
        """Let go of the database. What was not read yet is an error, not the end of the keys."""
        self._iterator = None


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # A commit that was cut short is forgiven at the end of the log; damage anywhere else is an error. The default,
    # point in time, would drop everything from the damage on, commits that were acknowledged included, without a word.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_keep_log_file_num(4)  # texts for people, one more with every opening
    return options


def _text(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
