"""An index in a RocksDB directory.

Both spaces lie in one column family, told apart by the first byte of the key. With two, a quiet one would keep every
log file of the busy one alive, and a crash could find one flushed ahead of the other.

A commit is one write batch, synced before it returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocksdict import WriteBatch, WriteOptions

from holdfast.base import forks
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.storage.kv.backend import Changes, Space
from holdfast.storage.kv.pending import LIMIT, too_large
from holdfast.storage.kv.rocksdb_directory import Claim, address_of
from holdfast.storage.kv.rocksdb_reading import SPACES, Database, explained, shown
from holdfast.storage.kv.token import new_token

_TOKEN = b"t"


class RocksdbBackend:
    """One index in one directory, for one process at a time; a second opening is refused, within a process too.

    A transaction is kept in memory, up to `limit` bytes; `write` refuses what goes beyond it, and then all of it.
    Durable when `commit` returns, power loss included, where the disk honours a sync.
    """

    is_persistent = True

    def __init__(self, path: str, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._claim = Claim(path)
        self.address = address_of(self._claim.path)
        self._batch: WriteBatch | None = None
        self._failed: HoldfastError | None = None
        self._closed = False
        self._synced = WriteOptions()
        self._synced.sync = True
        self._db: Database | None = None
        try:
            self._opened()
        except BaseException:
            self.close()
            raise

    def read(self, space: Space, key: bytes) -> bytes | None:
        return self._opened().read(space, key)

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._opened().scan(space, prefix)

    def write(self, changes: Changes) -> None:
        self._opened()
        if self._failed:
            raise self._failed
        if self._batch is None:
            self._batch = WriteBatch(raw_mode=True)
        put, delete = self._batch.put, self._batch.delete
        for space, of_space in changes.items():
            prefix = SPACES[space]
            for key, value in of_space.items():
                if value is None:
                    delete(prefix + key)
                else:
                    put(prefix + key, value)
        if self._batch.size_in_bytes() > self._limit:
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
                db.raw.write(batch, self._synced)
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
            found = self._opened().raw.get(_TOKEN)
        except Exception as second:
            raise OutcomeUnknown(
                f"RocksDB failed to commit, and cannot be opened to find out whether it did: {shown(error)}; then: "
                f"{shown(second)}",
                code="index.outcome-unknown",
                about=self.address,
                next_step="make room on the disk, or repair what the message says; then open the index and look at its "
                "checkpoints before anything is committed again",
            ) from error
        if found != token:
            raise explained(error, "committing", self._claim.path) from error

    def _opened(self) -> Database:
        """The database; opened again if it had to be closed after a failure."""
        if self._closed:
            raise forks.closed_or_forked(self.address)
        if self._db is None:
            with step("rocksdb.open"):
                self._db = Database(self._claim.path, self._claim.path)
        elif self._db.is_closed:  # not by us: this is a forked child
            raise forks.closed_or_forked(self.address)
        return self._db

    def _shut(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
