"""The common part of all backends' transactions: one at a time, and writes that are held until the commit.

A signal can raise at any line here. So a transaction takes nothing before it is in its caller's hands, a rollback is
fine to do twice, and whose turn it is changes in one assignment.
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
"""Bytes of keys and values that a transaction may hold in memory."""
SPILL_BYTES = 4 << 20
"""From here on, a transaction is sent to a backend that has transactions of its own."""
OVERHEAD = 150
"""What one change takes in Python, in bytes, besides its key and value."""


class PendingWrites:
    """Writes of a transaction that its backend does not have yet."""

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
            self.size += sum(map(len, changes)) + sum(map(len, filter(None, changes.values())))
            self.size += OVERHEAD * len(changes)

    def __bool__(self) -> bool:
        return any(self.batch.values())


class Ticket:
    """Stands for one transaction in the queue. Not the transaction: that would keep its store alive for ever."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.current_thread()  # not its number, which the next thread may be given


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
                self._ended.wait(1.0)  # a signal may have kept a notification back
            self.holder = ticket

    def try_take(self, ticket: Ticket) -> bool:
        with self._mutex:
            if self.holder is None:
                self.holder = ticket
            return self.holder is ticket

    def give_back(self, ticket: Ticket) -> None:
        """Fine if it was not this one's turn."""
        with self._mutex:
            if self.holder is ticket:
                self._ended.notify()
                self.holder = None

    def forget_in_child(self) -> None:
        """A thread of the parent's may hold the lock, and will never release it here."""
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
        """`Invalid` if it is closed or the parent's, `Unavailable` if it is lost."""

    def apply(self, batch: WriteBatch) -> None:
        """Make these writes visible and durable in one step; it is this store's turn to write."""


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
        self._is_over = True
        if self._has_turn:
            self._undo()  # interrupted, it keeps its turn: no other may write before the backend has rolled back
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
            except BaseException:
                self._end()
                raise

    def _begin(self) -> None:
        """Called when its turn has come."""

    def _add(self, batch: WriteBatch) -> None:
        self._pending.add(batch)
        limit = self._store.max_transaction
        if limit is not None and self._pending.size > limit:
            raise errors.too_large(self._store.kind, limit, self._store.address)

    def _apply(self) -> None:
        if self._pending:
            self._store.apply(self._pending.batch)

    def _undo(self) -> None:
        """Forget what is held. Fine to do twice."""
        self._pending = PendingWrites()
