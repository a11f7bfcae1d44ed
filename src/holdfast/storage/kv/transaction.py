"""The common part of all backends' transactions: one at a time, with writes held in memory until the commit.

A signal can raise at any line here. So a transaction takes its turn only after `begin` has returned it to the caller, a
rollback can be repeated, and the turn changes hands in one assignment.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol, Self

from holdfast.base import forks
from holdfast.errors import HoldfastError
from holdfast.storage.kv import errors
from holdfast.storage.kv.store import Kind, Row, WriteBatch

MAX_TRANSACTION = 512 << 20
"""The size (`transaction_size`) of a transaction that is held in memory until it is committed. Redis holds it a second
time, and closes connections that queue more than a gigabyte."""
MAX_ROCKSDB_TRANSACTION = 2 << 30
"""The same on RocksDB, which copies the batch once into its own memory."""
SPILL_BYTES = 4 << 20
"""Beyond this size, writes are sent to a backend that has transactions of its own."""
OVERHEAD = 150
"""The memory that one change takes in Python, in bytes, besides its key and value."""


def transaction_size(changes: int, payload: int) -> int:
    """The size of a transaction with so many changes, and so many bytes of keys and values. No backend counts more."""
    return payload + OVERHEAD * changes


class PendingWrites:
    """The writes of a transaction that were not sent to its backend yet."""

    __slots__ = ("batch", "size")

    def __init__(self) -> None:
        self.batch: WriteBatch = {}
        self.size = 0
        """An upper bound: a key that was changed twice counts twice."""

    def add(self, batch: WriteBatch) -> None:
        for space, changes in batch.items():
            if space in self.batch:
                self.batch[space].update(changes)
            else:
                self.batch[space] = changes
            payload = sum(map(len, changes)) + sum(map(len, filter(None, changes.values())))
            self.size += transaction_size(len(changes), payload)

    def __bool__(self) -> bool:
        return any(self.batch.values())


class Ticket:
    """Represents one transaction in `Turn`. The transaction itself would keep its store alive for ever."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.current_thread()  # not its ident, which a later thread may get again


class Turn:
    """Which transaction of this process may write."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._ended = threading.Condition(self._mutex)
        self.holder: Ticket | None = None
        forks.opened(self)

    def take(self, ticket: Ticket, kind: Kind, address: str) -> None:
        """Wait until no other transaction writes. `Invalid` if this thread would wait for itself."""
        with self._mutex:
            while self.holder is not None and self.holder is not ticket:
                if self.holder.thread is ticket.thread:
                    raise errors.nested(kind, address)
                self._ended.wait(1.0)  # with a timeout, since a signal may have prevented the notification
            self.holder = ticket

    def try_take(self, ticket: Ticket) -> bool:
        with self._mutex:
            if self.holder is None:
                self.holder = ticket
            return self.holder is ticket

    def give_back(self, ticket: Ticket) -> None:
        """End the turn of `ticket`. Fine if it does not have the turn."""
        with self._mutex:
            if self.holder is ticket:
                self._ended.notify()
                self.holder = None

    def forget_in_child(self) -> None:
        """Replace the lock: a thread of the parent may hold it, and does not exist in this process."""
        self._mutex = threading.Lock()
        self._ended = threading.Condition(self._mutex)
        self.holder = None


class TransactionalStore(Protocol):
    """The methods of a store that its transactions call."""

    @property
    def address(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def turn(self) -> Turn: ...

    @property
    def max_transaction(self) -> int | None: ...

    def get(self, space: str, key: bytes) -> bytes | None: ...

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]: ...

    def check_open(self) -> None:
        """`Invalid` if it is closed or the parent process's, `Unavailable` if a failed commit made it unusable."""

    def apply(self, batch: WriteBatch) -> None:
        """Make these writes visible and durable in one step. Called only by the transaction that has the turn."""


class BufferedTransaction:
    """Holds its writes in memory and lets the store apply them at the end.

    Backends with transactions of their own override the methods that begin with an underscore.
    """

    def __init__(self, store: TransactionalStore) -> None:
        self._store = store
        self._ticket = Ticket()
        self._pending = PendingWrites()
        self._failed: HoldfastError | None = None
        self._has_begun = False
        self._is_over = False
        self._not_begun: HoldfastError | None = None
        """Why it could not begin: a caller that swallowed this error must not believe that it was committed."""

    def get(self, space: str, key: bytes) -> bytes | None:
        self._take_turn()
        return self._store.get(space, key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._take_turn()
        return self._store.get_many(space, keys)

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        self._take_turn()
        return self._store.scan(space, start, end, limit)

    def write(self, batch: WriteBatch) -> None:
        self._take_turn()
        if self._failed:
            raise self._failed
        try:
            self._add(batch)
        except HoldfastError as error:
            self._failed = error
            self._undo()
            raise

    def commit(self) -> None:
        if self._not_begun is not None:
            raise self._not_begun
        if self._is_over:
            return
        try:
            self._store.check_open()
            if self._failed:
                raise self._failed
            if self._has_begun:
                self._apply()
        finally:
            self._end()

    def rollback(self) -> None:
        self._is_over, self._not_begun = True, None
        if self._has_turn:
            self._undo()  # if interrupted, it keeps its turn: no other may write before the backend has rolled back
            self._store.turn.give_back(self._ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        self.commit() if kind is None else self._end()

    def _end(self) -> None:
        try:
            self.rollback()
        finally:
            self.rollback()  # a signal may have cut the first one short

    @property
    def _has_turn(self) -> bool:
        return self._store.turn.holder is self._ticket

    def _take_turn(self) -> None:
        if self._is_over:
            raise errors.over(self._store.kind, self._store.address)
        self._store.check_open()
        if not self._has_begun:
            try:
                self._store.turn.take(self._ticket, self._store.kind, self._store.address)
                self._begin()
                self._has_begun = True
            except BaseException as error:
                self._end()
                over = errors.over(self._store.kind, self._store.address)
                self._not_begun = error if isinstance(error, HoldfastError) else over
                raise

    def _begin(self) -> None:
        """Called when the transaction has got its turn."""

    def _add(self, batch: WriteBatch) -> None:
        self._pending.add(batch)
        limit = self._store.max_transaction
        if limit is not None and self._pending.size > limit:
            raise errors.too_large(self._store.kind, limit, self._store.address)

    def _apply(self) -> None:
        if self._pending:
            self._store.apply(self._pending.batch)

    def _undo(self) -> None:
        """Discard the held writes. Fine to do twice."""
        self._pending = PendingWrites()
