"""Sessions: changes that are committed together by one thread.

A session is begun once and may be begun again inside itself; only the outermost commit writes, and a rollback at any
depth undoes the whole session. Changes are held in memory up to a bound and then spill into a transaction of the store,
so that a session may be larger than memory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from threading import get_ident
from typing import TypeVar

from holdfast.base import forks
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid
from holdfast.storage.kv import errors
from holdfast.storage.kv.store import KeyValueStore, Reader, Transaction, WriteBatch

HELD_CHANGES = 4096
HELD_BYTES = 4 << 20
"""Limit for values larger than `SMALL`; smaller ones are bounded by `HELD_CHANGES`."""
SMALL = 1024
_ALL_LEVELS = 1 << 62  # deeper than any block: marks every open block as undone, so that it ends with an error
log = logging.getLogger("holdfast.sources")
T = TypeVar("T")


class _Scope:
    """One entry into a session: by `begin`, or as a `with` block."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()  # not its ident, which a later thread may get again
        self.serial = 0
        """The serial of the session; 0 until it is entered."""
        self.depth = 0
        self.is_undone = False
        """Whether a deeper level has rolled the session back."""
        self.is_complete = False


class SessionManager:
    """The one session that an index can have at a time, and every write that goes to its store.

    A session belongs to the thread that began it. Meanwhile all other threads may only read. If that thread ends
    without ending its session, the next thread that wants to write rolls the session back, with a warning.

    A signal can raise at any line here. So each action is recorded in a field before it is taken, every undo can be
    repeated, and no transaction begins before the one that an interrupted rollback left over is rolled back.
    """

    def __init__(self, store: Reader) -> None:
        self.refusal: Callable[[], HoldfastError] | None = None
        """Makes the error that refuses all reads and writes, after a close or during a reset; None while usable."""
        self._store = store
        self._writable = store if isinstance(store, KeyValueStore) else None
        self._lock = threading.RLock()
        self._depth = 0
        self.owner = 0
        self.held_limit = HELD_CHANGES
        """How many changes are held before they go into a transaction."""
        """The ident of the thread that began the session; 0 if there is none."""
        self._thread: threading.Thread | None = None
        self._serial = 0
        self.held_results: dict[bytes, bytes | None] = {}
        self._held_meta: dict[bytes, bytes | None] = {}
        """Changes of the session that are not in a transaction yet, as `held_results`."""
        self._held_bytes = 0
        self._transaction: Transaction | None = None
        """Holds the part of the session that has spilled."""
        self._leftover: Transaction | None = None
        """A transaction that must never be committed: it is rolled back before anything is written."""
        self._blocks: dict[_Scope, None] = {}  # the `with` blocks that are open
        forks.opened(self)

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    def check_usable(self) -> None:
        if self.refusal is not None:
            raise self.refusal()

    def begin(self) -> None:
        """Begin a session, or one more level of the session that this thread has open.

        If this is interrupted, the whole session is rolled back.
        """
        entry = _Scope()
        try:
            self._enter(entry)
        except BaseException:
            self._abandon(entry)
            raise

    def commit(self) -> None:
        """Leave one level; the outermost commit makes the session's changes visible and durable in one step.

        If it raises, nothing was applied and no session is open; after `OutcomeUnknown`, read back what is there.
        """
        with self._lock:
            self.check_usable()
            self._check_thread("commit")
            if self._depth == 0:
                raise Invalid(
                    f"{self._store.address}: there is no session to commit.",
                    code="session.none",
                    about=self._store.address,
                    unchanged="the index",
                    next_step="begin one first, or use `with index.session():`",
                )
            if self._depth > 1:
                self._depth -= 1
                return
            try:
                held = self._held()
                if held or self._transaction is not None:
                    self._apply(held)
                self._forget()
            except BaseException:
                self._undo(_ALL_LEVELS)
                raise

    def rollback(self) -> None:
        """Undo the whole session, at any depth. Does nothing without a session."""
        with self._lock:
            self._check_thread("roll back")
            if self._depth:
                self._undo(self._depth)

    @contextlib.contextmanager
    def session(self, given: T) -> Iterator[T]:
        """Begin; commit at the end of the block, roll back if it raises. `given` is the value of the `with` block.

        If code inside the block rolls the session back and continues, the end of the block raises `Invalid`, because
        the block's own changes are lost. Until then the block cannot write.
        """
        block = _Scope()
        try:
            try:
                self._enter(block)
                self._blocks[block] = None
                yield given
                self._complete(block)
                block.is_complete = True
            finally:
                self._leave(block)
        finally:
            self._leave(block)  # a signal may have cut the first one short

    def add(self, space: str, key: bytes, value: bytes | None) -> None:
        """Add one change to the session. Without a session: apply it at once to a volatile store, else `Invalid`."""
        if self.owner == get_ident():
            held = self.held_results if space == "results" else self._held_meta
            held[key] = value
            if value is not None and len(value) > SMALL:
                self._held_bytes += len(value)
            if self._held_bytes >= HELD_BYTES or len(held) >= HELD_CHANGES:
                self.spill()
            return
        with self._lock:
            self.check_usable()
            self._check_thread("write")
            self._check_not_undone()
            if self._store.is_persistent:
                raise Invalid(
                    f"{self._store.address}: a write requires an active session, and none is open.",
                    code="session.none",
                    about=self._store.address,
                    unchanged="the index",
                    next_step="write inside `with index.session():`",
                )
            self._apply({space: {key: value}})

    def commit_alone(self, name: str, space: str, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Commit these changes as the step `name`, independently of a session that may be open."""
        with self._lock:
            self._check_thread("write")
            if self._transaction is not None:
                raise Invalid(
                    f"{self._store.address}: the session is too large for memory and has begun its transaction, "
                    "so that nothing can be committed beside it.",
                    code="session.large",
                    about=self._store.address,
                    unchanged="the index and the session",
                    next_step="do this before the session, or after it",
                )
            self._clean()
            try:
                with step(name):
                    self._leftover = transaction = self._begin()
                    rest = iter(changes)
                    while chunk := dict(islice(rest, HELD_CHANGES)):
                        transaction.write({space: chunk})
                    transaction.commit()
                    self._leftover = None
            finally:
                self._clean()

    def close(self) -> None:
        """Roll back an open session and refuse everything from now on. May be called from any thread."""
        forks.closed(self)
        with self._lock:
            self.refusal = self._closed
            if self._depth:
                self._undo(_ALL_LEVELS)

    def forget_in_child(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent may hold it, and does not exist in this process
        self.refusal = self._closed
        self._forget()
        self._leftover = None  # the parent rolls it back

    def _closed(self) -> HoldfastError:
        return errors.closed("index", self._store.address)

    def _begin(self) -> Transaction:
        if self._writable is None:
            raise errors.read_only("index", self._store.address)
        return self._writable.begin()

    def _held(self) -> WriteBatch:
        """The held changes by keyspace, without keyspaces that have none."""
        held: WriteBatch = {"results": self.held_results, "meta": self._held_meta}
        return {space: changes for space, changes in held.items() if changes}

    def _apply(self, batch: WriteBatch) -> None:
        self._clean()
        try:
            transaction = self._transaction = self._transaction or self._begin()
            if batch:
                with step("index.write", changes=_number_of(batch)):
                    transaction.write(batch)
            with step("index.commit"):
                transaction.commit()
            self._transaction = None
        except BaseException:
            self._mark_dirty()
            self._clean()
            raise

    def spill(self) -> None:
        """Write the held changes to the transaction, because they have reached the limit for memory."""
        with self._lock:
            try:
                self._clean()
                transaction = self._transaction = self._transaction or self._begin()
                held = self._held()
                with step("index.write", changes=_number_of(held)):
                    transaction.write(held)
                self._drop_held()
            except BaseException:
                self._undo(_ALL_LEVELS)
                raise

    def _enter(self, entry: _Scope) -> None:
        with self._lock:
            self.check_usable()
            self._check_thread("begin a session")
            if self._depth:
                entry.serial, entry.depth = self._serial, self._depth + 1
                self._depth = entry.depth
                return
            self._check_not_undone()
            entry.serial, entry.depth = self._serial + 1, 1
            self._serial, self._depth = entry.serial, entry.depth
            self._thread = entry.thread
            self.owner, self.held_limit = get_ident(), HELD_CHANGES

    def _complete(self, block: _Scope) -> None:
        """End a block that did not raise: commit its level, or raise if the session was ended inside."""
        if self._serial == block.serial and self._depth == block.depth:
            self.commit()
        elif self._serial == block.serial and self._depth > block.depth:
            self.rollback()
            raise self._undone_inside("a session was begun in its block and never committed")
        elif block.is_undone:
            raise self._undone_inside("it was rolled back inside its block")

    def _leave(self, block: _Scope) -> None:
        self._blocks.pop(block, None)
        if not block.is_complete:
            self._abandon(block)

    def _abandon(self, entry: _Scope) -> None:
        """Roll back the session that `entry` entered, if it is still open. From any thread; fine to do twice."""
        with self._lock:
            if self._serial == entry.serial and self._depth:
                self._undo(max(self._depth, entry.depth))  # its own commit may have left its level already

    def _undo(self, depth: int) -> None:
        for block in list(self._blocks):
            if block.serial == self._serial and block.depth < depth:
                block.is_undone = True
        self._forget()
        self._clean()

    def _clean(self) -> None:
        if self._leftover is not None:
            self._leftover.rollback()
            self._leftover = None

    def _mark_dirty(self) -> None:
        """Mark the spilled part of the session to be rolled back, now or before the next write."""
        self._leftover = self._transaction or self._leftover
        self._transaction = None

    def _forget(self) -> None:
        self._drop_held()
        self._mark_dirty()
        self.owner = 0
        self._thread = None
        self._depth = 0

    def _drop_held(self) -> None:
        self.held_results, self._held_meta, self._held_bytes = {}, {}, 0

    def _check_thread(self, what: str) -> None:
        if self._is_left_over():
            log.warning(
                "%s: a thread has ended with its session open, and the session was rolled back", self._store.address
            )
            self._undo(_ALL_LEVELS)
        if self.owner not in (0, get_ident()):
            raise Invalid(
                f"{self._store.address}: another thread has a session open, so this one cannot {what}.",
                code="session.other-thread",
                about=self._store.address,
                unchanged="the index and the session",
                next_step="let one thread do the writing, or wait for the other's commit; reading is fine",
            )

    def _is_left_over(self) -> bool:
        """Whether the thread that began the session has ended."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return False
        # Not `is_alive`: after a signal it can stay False for a live thread (Python 3.11).
        return thread not in threading.enumerate()

    def _check_not_undone(self) -> None:
        thread = threading.current_thread()
        if any(block.thread is thread for block in list(self._blocks)):
            raise self._undone_inside("it has ended before its block")

    def _undone_inside(self, why: str) -> Invalid:
        return Invalid(
            f"{self._store.address}: nothing more can be done in this session: {why}.",
            code="session.over",
            about=self._store.address,
            unchanged="what was committed before the session",
            next_step="let the error that ended it reach the outermost block, then do the change again",
        )


def _number_of(batch: WriteBatch) -> int:
    return sum(map(len, batch.values()))
