"""A store in a RocksDB directory.

All keyspaces lie in one column family, distinguished by the key's prefix. With several, a quiet one would keep every
log file of the busy one alive, and a crash could find one flushed ahead of the other. A commit is one write batch,
synced before it returns. rocksdict is used in raw mode: nothing is pickled.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, RdictIter, ReadOptions, WriteOptions
from rocksdict import WriteBatch as RocksdbBatch

from holdfast.base import forks
from holdfast.base.addresses import kv_address
from holdfast.base.steps import step
from holdfast.errors import Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable, one_line
from holdfast.storage.kv import errors
from holdfast.storage.kv.rocksdb_directory import DirectoryClaim, LinkedFiles
from holdfast.storage.kv.store import Kind, Mode, Row, Schema, WriteBatch, Writers, end_of
from holdfast.storage.kv.token import new_token
from holdfast.storage.kv.transaction import MAX_TRANSACTION, BufferedTransaction, Turn

_TOKEN = b"t"
"""A key before all keyspaces or between them: no prefix begins with it."""


class RocksdbStore:
    """One store in one directory, for one process at a time; a second opening is refused, within a process too.

    A transaction is kept in memory, up to `limit` bytes. Durable when `commit` returns, power loss included, where the
    disk honours a sync.
    """

    is_persistent = True
    writers: Writers = "exclusive"
    durability = "each commit is synced to the disk before it returns"

    def __init__(self, path: str, schema: Schema, mode: Mode = "exclusive", *, limit: int = MAX_TRANSACTION) -> None:
        self.max_transaction = limit
        self.kind = schema.kind
        self.turn = Turn()
        self.prefixes = schema.prefixes
        self._schema = schema
        self._claim = DirectoryClaim(path, schema.kind)
        self.address = kv_address("rocksdb", self._claim.path)
        self._is_closed = False
        self._synced = WriteOptions()
        self._synced.sync = True
        self._db: _Database | None = None
        try:
            self._opened()
        except BaseException:
            self.close()
            raise

    def get(self, space: str, key: bytes) -> bytes | None:
        return self._opened().get(space, key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._opened().get_many(space, keys)

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        return self._opened().scan(space, start, end, limit)

    def begin(self) -> RocksdbTransaction:
        self.check_open()
        return RocksdbTransaction(self)

    def close(self) -> None:
        self._is_closed = True
        self._shut()
        self._claim.release()

    def check_open(self) -> None:
        if self._is_closed or (self._db is not None and self._db.is_closed):  # not by us: this is a forked child
            raise errors.closed(self.kind, self.address)

    def apply(self, batch: WriteBatch) -> None:
        filled = RocksdbBatch(raw_mode=True)
        fill(filled, batch, self.prefixes)
        self.write(filled)

    def write(self, batch: RocksdbBatch) -> None:
        """Commit a batch that is already in RocksDB's form."""
        db = self._opened()
        token = new_token()
        batch.put(_TOKEN, token)
        try:
            with step("rocksdb.commit"):
                db.raw.write(batch, self._synced)
        except Exception as error:
            self._settle(token, error)

    def _settle(self, token: bytes, error: Exception) -> None:
        """Find out what became of a failed write, by opening the database anew.

        A batch whose sync failed may lie in the log all the same, and would come back whenever the log is next read.
        So it is read at once: recovery either makes the batch durable, or leaves it out for good.
        """
        self._shut()
        try:
            found = self._opened().raw.get(_TOKEN)
        except Exception as second:
            then = "checkpoints" if self.kind == "index" else "streams and cursors"
            raise OutcomeUnknown(
                f"RocksDB failed to commit, and cannot be opened to find out whether it did: {one_line(error)}; then: "
                f"{one_line(second)}",
                code=f"{self.kind}.outcome-unknown",
                about=self.address,
                next_step=f"make room on the disk, or repair what the message says; then open the {self.kind} and look "
                f"at its {then} before anything is committed again",
            ) from error
        if found != token:
            raise _explained(error, "committing", self.kind, self.address) from error

    def _opened(self) -> _Database:
        """The database; opened again if it had to be closed after a failure."""
        self.check_open()
        if self._db is None:
            with step("rocksdb.open"):
                self._db = _Database(self._claim.path, self._schema, self.address)
        return self._db

    def _shut(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class RocksdbTransaction(BufferedTransaction):
    """Its writes are put into RocksDB's own batch at once, which is smaller and faster than holding them twice."""

    _store: RocksdbStore

    def __init__(self, store: RocksdbStore) -> None:
        super().__init__(store)
        self._batch: RocksdbBatch | None = None

    def _add(self, batch: WriteBatch) -> None:
        if self._batch is None:
            self._batch = RocksdbBatch(raw_mode=True)
        fill(self._batch, batch, self._store.prefixes)
        if self._batch.size_in_bytes() > self._store.max_transaction:
            raise errors.too_large(self._store.kind, self._store.max_transaction, self._store.address)

    def _apply(self) -> None:
        if self._batch is not None and self._batch.len():
            self._store.write(self._batch)

    def _undo(self) -> None:
        self._batch = None


class RocksdbReader:
    """The store as it is when this is made, with all that was committed before; later commits do not show.

    Nothing is written to its directory. What this has open stays readable when the process that writes replaces its
    files.
    """

    is_persistent = True

    def __init__(self, path: str, schema: Schema) -> None:
        files = LinkedFiles(path, schema.kind)
        self.address = kv_address("rocksdb", files.path)
        database = files.opened_with(lambda folder: _Database(folder, schema, self.address, read_only=True))
        self.get = database.get
        self.get_many = database.get_many
        self.scan = database.scan
        self.close = database.close


def fill(filled: RocksdbBatch, batch: WriteBatch, prefixes: dict[str, bytes]) -> None:
    put, delete = filled.put, filled.delete
    for space, changes in batch.items():
        prefix = prefixes[space]
        for key, value in changes.items():
            if value is None:
                delete(prefix + key)
            else:
                put(prefix + key, value)


class _Database:
    """A database that is open: gets and scans, from any thread."""

    def __init__(self, path: str, schema: Schema, address: str, *, read_only: bool = False) -> None:
        self._kind = schema.kind
        self._prefixes = schema.prefixes
        self._address = address
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
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
            raise _explained(error, "opening", self._kind, address) from error
        forks.opened(self)

    @property
    def is_closed(self) -> bool:
        return self._raw is None

    @property
    def raw(self) -> Rdict:
        if self._raw is None:
            raise errors.closed(self._kind, self._address)
        return self._raw

    def get(self, space: str, key: bytes) -> bytes | None:
        raw = self.raw
        try:
            found: bytes | None = raw.get(self._prefixes[space] + key)
        except Exception as error:
            raise _explained(error, "reading", self._kind, self._address) from error
        return found

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix, raw = self._prefixes[space], self.raw
        try:
            # One MultiGet, which reads as of one sequence number.
            return list(raw.get([prefix + key for key in keys]) or []) if keys else []
        except Exception as error:
            raise _explained(error, "reading", self._kind, self._address) from error

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """As of the moment of this call, whatever is committed before the scan ends."""
        prefix = self._prefixes[space]
        last = end_of(prefix) if end is None else prefix + end
        assert last is not None  # a keyspace's prefix is text
        scan = _Scan(self.raw, prefix, prefix + start, max(prefix + start, last), limit, self._kind, self._address)
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


class _Scan:
    """Keys and values in order, from a snapshot.

    rocksdict's own `items` ends without a word at a damaged block, as if there was nothing more: hence the iterator
    underneath it, whose status is asked for at the end.
    """

    def __init__(
        self, db: Rdict, prefix: bytes, start: bytes, end: bytes, limit: int | None, kind: Kind, address: str
    ) -> None:
        self._kind = kind
        self._address = address
        self._skipped = len(prefix)
        self._left = -1 if limit is None else limit
        self._iterator: RdictIter | None = None
        self._is_over = False
        # Kept as long as the iterator: it has only a pointer to the bytes of the bound, and would read whatever is
        # there once they are gone.
        self._options = ReadOptions()
        self._options.set_iterate_upper_bound(end)
        self._iterator = db.snapshot().iter(self._options)
        self._iterator.seek(start)

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> Row:
        if self._is_over:
            raise StopIteration
        iterator = self._iterator
        if iterator is None:
            raise Invalid(
                f"The {self._kind} was closed, or opened anew, in the middle of this scan.",
                code=f"{self._kind}.scan-ended",
                about=self._address,
                next_step="scan again",
            )
        if self._left != 0 and iterator.valid():
            self._left -= 1
            found: Row = iterator.key()[self._skipped :], iterator.value()
            iterator.next()
            return found
        try:
            iterator.status()
        except Exception as error:
            raise _explained(error, "reading", self._kind, self._address) from error
        self._is_over = True
        self._iterator = None
        raise StopIteration

    def end(self) -> None:
        """Release the database. Reading on is an error afterwards, not the end of the keys."""
        self._iterator = None

    def forget_in_child(self) -> None:
        forks.leak(self._iterator)
        self.end()


def _explained(error: Exception, doing: str, kind: Kind, address: str) -> HoldfastError:
    """rocksdict raises `Exception` for everything; the text begins with the kind of RocksDB's status."""
    if str(error).startswith("Corruption"):
        start_over = ", or move it away and start over: the sources are then read from their beginning"
        return Corrupt(
            f"The {kind} is damaged; found while {doing}: {one_line(error)}",
            code=f"{kind}.damaged",
            about=address,
            unchanged=errors.nothing_applied(kind),
            next_step="restore the directory from a backup" + (start_over if kind == "index" else ""),
        )
    return Unavailable(
        f"RocksDB failed while {doing}: {one_line(error)}",
        code=f"{kind}.unavailable",
        about=address,
        unchanged=errors.nothing_applied(kind),
        next_step="see that the disk has room and can be written to; then try again",
    )
