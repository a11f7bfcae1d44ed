"""A store in a RocksDB directory.

All keyspaces are in one column family, distinguished by the key's prefix. With several column families, an idle one
would keep all log files of a busy one alive, and after a crash one could be flushed ahead of the other. A commit is one
write batch, synced before it returns. rocksdict is used in raw mode: nothing is pickled.
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
from holdfast.storage.kv.transaction import MAX_ROCKSDB_TRANSACTION, BufferedTransaction, Turn

_TOKEN = b"t"
"""The key of the last commit's token. It is in no keyspace: no prefix begins with it."""


class RocksdbStore:
    """One store in one directory, for one process at a time. A second opening is refused, also within a process.

    A transaction is held in memory, up to `limit` bytes. Durable when `commit` returns, also against power loss if the
    disk honours a sync.
    """

    is_persistent = True
    writers: Writers = "exclusive"
    durability = "each commit is synced to the disk before it returns"

    def __init__(
        self, path: str, schema: Schema, mode: Mode = "exclusive", *, limit: int = MAX_ROCKSDB_TRANSACTION
    ) -> None:
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
        # A database that is closed while the store is not: this is a forked child.
        if self._is_closed or (self._db is not None and self._db.is_closed):
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
        """Find out whether a failed write took effect, by reopening the database.

        A batch whose sync failed may be in the log nevertheless, and would come back when the log is read next. So the
        log is read at once: recovery either makes the batch durable, or drops it for good.
        """
        self._shut()
        try:
            found = self._opened().raw.get(_TOKEN)
        except Exception as second:
            then = "checkpoints" if self.kind == "index" else "streams and cursors"
            raise OutcomeUnknown(
                "RocksDB failed to commit, and cannot be reopened to find out whether the commit took effect: "
                f"{one_line(error)}; then: {one_line(second)}",
                code=f"{self.kind}.outcome-unknown",
                about=self.address,
                next_step=f"make room on the disk, or repair what the message says; then open the {self.kind} and look "
                f"at its {then} before anything is committed again",
            ) from error
        if found != token:
            raise _explained(error, "committing", self.kind, self.address) from error

    def _opened(self) -> _Database:
        """The database; reopened if it had to be closed after a failure."""
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
    """Puts its writes into RocksDB's own batch at once, which is smaller and faster than holding them twice."""

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
    """The store as of the moment of opening, with all commits before it; later commits do not show.

    Nothing is written to the store's directory. Open files stay readable when the writing process replaces them.
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
    """An open database: gets and scans, from any thread."""

    def __init__(self, path: str, schema: Schema, address: str, *, read_only: bool = False) -> None:
        self._kind = schema.kind
        self._prefixes = schema.prefixes
        self._address = address
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        options = Options(raw_mode=True)
        options.create_if_missing(not read_only)
        # An incomplete commit at the end of the log is dropped; damage anywhere else is an error. The default, point in
        # time, would silently drop everything after the damage, acknowledged commits included.
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_keep_log_file_num(4)  # RocksDB's info logs: every opening adds one
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
        """Scan as of the moment of this call: commits made during the scan do not show."""
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
            with contextlib.suppress(Exception):  # it only repeats an earlier failure
                raw.close()

    def forget_in_child(self) -> None:
        """Leak the database: closing it would write to the parent's files, and wait for the parent's threads."""
        for scan in list(self._scans):
            scan.forget_in_child()
        forks.leak(self._raw)
        self._raw = None


class _Scan:
    """Keys and values in order, from a snapshot.

    rocksdict's own `items` ends silently at a damaged block, as if there were no more keys. So this uses the iterator
    underneath, and checks its status at the end.
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
        # Kept as long as the iterator, which has only a pointer to the bytes of the bound and would otherwise read
        # freed memory.
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
        """Release the database. The next read then raises, so that it is not taken for the end of the keys."""
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
        next_step="check that the disk has room and can be written to; then try again",
    )
