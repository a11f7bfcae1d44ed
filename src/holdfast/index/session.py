"""Sessions: which changes belong together, and who may make them.

A session is begun once and may be begun again inside itself; only the outermost commit writes, and a rollback at any
depth undoes the whole session. Changes are held back in memory up to a bound and go on to the backend's transaction
from there, so that a session may be larger than memory.
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
from holdfast.storage.kv.backend import Backend, Changes, Space

HELD_CHANGES = 4096
HELD_BYTES = 4 << 20
"""Of values that are not small; small ones are bounded by the number of changes."""
SMALL = 1024
_BY_A_FAILURE = 1 << 62  # deeper than any block: whoever is inside hears of it
log = logging.getLogger("holdfast.sources")
T = TypeVar("T")


class _Entry:
    """One way into a session: by `begin`, or as a `with` block."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()  # not its number, which the next thread may be given
        self.serial = 0
        """Of the session; 0 until it is entered."""
        self.depth = 0
        self.is_undone = False
        """Whether something deeper inside has rolled the session back."""
        self.is_complete = False


class Sessions:
    """The one session that an index can have at a time, and every write that goes to its backend.

    A session belongs to the thread that began it. All other threads may read meanwhile and nothing else. If that thread
    ends without ending its session, the next one that wants to write rolls it back, with a warning.

    A signal can raise at any line here. So what is begun is on record before it is done, everything that undoes is fine
    to do twice, and nothing goes to the backend before what was left there by an interrupted rollback is gone.
    """

    def __init__(self, backend: Backend) -> None:
        self.refusal: Callable[[], HoldfastError] | None = None
        """Why nothing can be read or written any more; None while everything is in order."""
        self._backend = backend
        self._lock = threading.RLock()
        self._depth = 0
        self.owner = 0
        """The thread that has begun the session; 0 if there is none."""
        self._thread: threading.Thread | None = None
        self._serial = 0
        self.held_results: dict[bytes, bytes | None] = {}
        self._held_meta: dict[bytes, bytes | None] = {}
        """What the session has changed and the backend does not know yet."""
        self._held_bytes = 0
        self._is_handed_on = False
        """Whether the backend's transaction has part of the session."""
        self._is_dirty = False
        """Whether the backend's transaction has something that must never be committed."""
        self._blocks: dict[_Entry, None] = {}  # the `with` blocks that somebody is in
        forks.opened(self)

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    def check_usable(self) -> None:
        if self.refusal is not None:
            raise self.refusal()

    def begin(self) -> None:
        """Begin a session, or go one deeper into the one that this thread has begun.

        If it is interrupted, the whole session is rolled back.
        """
        entry = _Entry()
        try:
            self._enter(entry)
        except BaseException:
            self._abandon(entry)
            raise

    def commit(self) -> None:
        """Go one out; from the outermost, make the session's changes visible and durable in one step.

        If it raises, nothing was applied and no session is open; after `OutcomeUnknown`, read back what is there.
        """
        with self._lock:
            self.check_usable()
            self._check_thread("commit")
            if self._depth == 0:
                raise Invalid(
                    f"{self._backend.address}: there is no session to commit.",
                    code="session.none",
                    about=self._backend.address,
                    unchanged="the index",
                    next_step="begin one first, or use `with index.session():`",
                )
            if self._depth > 1:
                self._depth -= 1
                return
            try:
                held = self._held()
                if held or self._is_handed_on:
                    self._apply(held)
                self._forget()
            except BaseException:
                self._undo(_BY_A_FAILURE)
                raise

    def rollback(self) -> None:
        """Undo the whole session, at whatever depth. Nothing happens if there is none."""
        with self._lock:
            self._check_thread("roll back")
            if self._depth:
                self._undo(self._depth)

    @contextlib.contextmanager
    def session(self, given: T) -> Iterator[T]:
        """Begin; commit at the end of the block, roll back if it raises. The block is given this.

        If something inside has rolled the session back and gone on, the end of the block is `Invalid`: whoever wrote
        the block counts on its changes being there. Until then the block can write nothing more.
        """
        block = _Entry()
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

    def add(self, space: Space, key: bytes, value: bytes | None) -> None:
        """One change of the session. Without a session: at once in memory, `Invalid` where commits last."""
        if self.owner == get_ident():
            held = self.held_results if space == "results" else self._held_meta
            held[key] = value
            if value is not None and len(value) > SMALL:
                self._held_bytes += len(value)
            if self._held_bytes >= HELD_BYTES or len(held) >= HELD_CHANGES:
                self.hand_on()
            return
        with self._lock:
            self.check_usable()
            self._check_thread("write")
            self._check_not_undone()
            if self._backend.is_persistent:
                raise Invalid(
                    f"{self._backend.address}: a write requires an active session, and none is open.",
                    code="session.none",
                    about=self._backend.address,
                    unchanged="the index",
                    next_step="write inside `with index.session():`",
                )
            self._apply({space: {key: value}})

    def commit_alone(self, name: str, space: Space, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Commit these changes as one step of this name, whatever becomes of the session around it, if there is one."""
        with self._lock:
            self._check_thread("write")
            if self._is_handed_on:
                raise Invalid(
                    f"{self._backend.address}: the session is larger than what is held back in memory, "
                    "so that nothing can be committed beside it any more.",
                    code="session.large",
                    about=self._backend.address,
                    unchanged="the index and the session",
                    next_step="do this before the session, or after it",
                )
            self._clean()
            try:
                with step(name):
                    self._is_dirty = True
                    rest = iter(changes)
                    while chunk := dict(islice(rest, HELD_CHANGES)):
                        self._backend.write({space: chunk})
                    self._backend.commit()
                    self._is_dirty = False
            finally:
                self._clean()

    def close(self) -> None:
        """Undo what is open and refuse everything from now on. From any thread."""
        forks.closed(self)
        with self._lock:
            self.refusal = lambda: forks.closed_or_forked(self._backend.address)
            if self._depth:
                self._undo(_BY_A_FAILURE)

    def forget_in_child(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent's may hold it, and will never let go of it here
        self.refusal = lambda: forks.closed_or_forked(self._backend.address)
        self._forget()
        self._is_dirty = False  # that is for the parent to clean

    def _held(self) -> Changes:
        """By space, without those that nothing was changed in."""
        held: Changes = {"results": self.held_results, "meta": self._held_meta}
        return {space: changes for space, changes in held.items() if changes}

    def _apply(self, changes: Changes) -> None:
        self._clean()
        try:
            self._is_handed_on = True
            if changes:
                with step("index.write", changes=_number_of(changes)):
                    self._backend.write(changes)
            with step("index.commit"):
                self._backend.commit()
            self._is_handed_on = False
        except BaseException:
            self._disown()
            self._clean()
            raise

    def hand_on(self) -> None:
        """Let the backend's transaction have what is held: it is as much as memory is given for."""
        with self._lock:
            try:
                self._clean()
                self._is_handed_on = True
                held = self._held()
                with step("index.write", changes=_number_of(held)):
                    self._backend.write(held)
                self._let_go()
            except BaseException:
                self._undo(_BY_A_FAILURE)
                raise

    def _enter(self, entry: _Entry) -> None:
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
            self.owner = get_ident()

    def _complete(self, block: _Entry) -> None:
        """The end of a block that did not raise."""
        if self._serial == block.serial and self._depth == block.depth:
            self.commit()
        elif self._serial == block.serial and self._depth > block.depth:
            self.rollback()
            raise self._undone_inside("a session was begun in its block and never committed")
        elif block.is_undone:
            raise self._undone_inside("it was rolled back inside its block")

    def _leave(self, block: _Entry) -> None:
        self._blocks.pop(block, None)
        if not block.is_complete:
            self._abandon(block)

    def _abandon(self, entry: _Entry) -> None:
        """Roll the session back that was entered here, if it is still open. From any thread; fine to do twice."""
        with self._lock:
            if self._serial == entry.serial and self._depth:
                self._undo(max(self._depth, entry.depth))  # its own commit may have gone one out already

    def _undo(self, depth: int) -> None:
        for block in list(self._blocks):
            if block.serial == self._serial and block.depth < depth:
                block.is_undone = True
        self._forget()
        self._clean()

    def _clean(self) -> None:
        if self._is_dirty:
            self._backend.rollback()
            self._is_dirty = False

    def _disown(self) -> None:
        """What the backend's transaction has of the session is to be cleaned away, now or before the next write."""
        self._is_dirty = self._is_dirty or self._is_handed_on
        self._is_handed_on = False

    def _forget(self) -> None:
        self._let_go()
        self._disown()
        self.owner = 0
        self._thread = None
        self._depth = 0

    def _let_go(self) -> None:
        self.held_results, self._held_meta, self._held_bytes = {}, {}, 0

    def _check_thread(self, what: str) -> None:
        if self._is_left_over():
            log.warning("%s: a thread has ended with its session open, which was rolled back", self._backend.address)
            self._undo(_BY_A_FAILURE)
        if self.owner not in (0, get_ident()):
            raise Invalid(
                f"{self._backend.address}: another thread has a session open, so this one cannot {what}.",
                code="session.other-thread",
                about=self._backend.address,
                unchanged="the index and the session",
                next_step="let one thread do the writing, or wait for the other's commit; reading is fine",
            )

    def _is_left_over(self) -> bool:
        """Whether the thread that has begun the session is no more."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return False
        return thread not in threading.enumerate()  # a signal can make `is_alive` say no for ever (Python 3.11)

    def _check_not_undone(self) -> None:
        thread = threading.current_thread()
        if any(block.thread is thread for block in list(self._blocks)):
            raise self._undone_inside("it is over, and its block is not")

    def _undone_inside(self, why: str) -> Invalid:
        return Invalid(
            f"{self._backend.address}: nothing more can be done in this session: {why}.",
            code="session.over",
            about=self._backend.address,
            unchanged="what was committed before the session",
            next_step="let the error that ended it reach the outermost block, then do the change again",
        )


def _number_of(changes: Changes) -> int:
    return sum(map(len, changes.values()))
