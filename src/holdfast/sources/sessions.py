"""Sessions: which changes belong together, and who may make them.

A session is begun once and may be begun again inside itself; only the outermost commit writes, and a rollback at any
depth undoes the whole session. Changes are held back in memory up to a bound and go on to the backend's transaction
from there, so that a session may be larger than memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from threading import get_ident

from holdfast.errors import HoldfastError, Invalid
from holdfast.sources import forks
from holdfast.sources.backend import Backend, Changes, Space
from holdfast.steps import step

HELD_CHANGES = 4096
HELD_BYTES = 4 << 20
"""Of values that are not small; small ones are bounded by the number of changes."""
SMALL = 1024
_BY_A_FAILURE = 1 << 62  # deeper than any block: whoever is inside hears of it


class Sessions:
    """The one session that an index can have at a time, and every write that goes to its backend.

    A session belongs to the thread that began it. All other threads may read meanwhile and nothing else.
    """

    def __init__(self, backend: Backend) -> None:
        self.refusal: Callable[[], HoldfastError] | None = None
        """Why nothing can be read or written any more; None while everything is in order."""
        self._backend = backend
        self._lock = threading.RLock()
        self._depth = 0
        self.owner = 0
        """The thread that has begun the session; 0 if there is none."""
        self._serial = 0
        self.held_results: dict[bytes, bytes | None] = {}
        self._held_meta: dict[bytes, bytes | None] = {}
        """What the session has changed and the backend does not know yet."""
        self._held_bytes = 0
        self._is_handed_on = False
        self._undone = (0, 0)  # the last session that was rolled back, and at which depth
        self._blocks: dict[int, int] = {}  # thread to the number of `with` blocks that it is in
        forks.opened(self)

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    def check_usable(self) -> None:
        if self.refusal is not None:
            raise self.refusal()

    def begin(self) -> None:
        """Begin a session, or go one deeper into the one that this thread has begun."""
        with self._lock:
            self.check_usable()
            self._check_thread("begin a session")
            if self._depth == 0:
                self._check_not_undone()
                self._serial += 1
                self.owner = get_ident()
            self._depth += 1

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
            serial, held, is_handed_on = self._serial, self._held(), self._is_handed_on
            self._forget()
            if held or is_handed_on:
                try:
                    self._apply(held)
                except BaseException:
                    self._undone = (serial, _BY_A_FAILURE)
                    raise

    def rollback(self) -> None:
        """Undo the whole session, at whatever depth. Nothing happens if there is none."""
        with self._lock:
            self._check_thread("roll back")
            if self._depth:
                self._undo(self._depth)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Begin; commit at the end of the block, roll back if it raises.

        If something inside has rolled the session back and gone on, the end of the block is `Invalid`: whoever wrote
        the block counts on its changes being there. Until then the block can write nothing more.
        """
        self.begin()
        thread, serial, depth = get_ident(), self._serial, self._depth
        self._blocks[thread] = self._blocks.get(thread, 0) + 1
        try:
            yield
        except BaseException:
            self._leave(thread)
            if self._serial == serial and self._depth:
                self.rollback()
            raise
        self._leave(thread)
        if self._serial == serial and self._depth == depth:
            self.commit()
        elif self._serial == serial and self._depth > depth:
            self.rollback()
            raise self._undone_inside("a session was begun in its block and never committed")
        elif self._undone[0] == serial and self._undone[1] > depth:
            raise self._undone_inside("it was rolled back inside its block")

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
            with step(name), self._rolled_back_on_failure():
                rest = iter(changes)
                while chunk := dict(islice(rest, HELD_CHANGES)):
                    self._backend.write({space: chunk})
                self._backend.commit()

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

    def _held(self) -> Changes:
        """By space, without those that nothing was changed in."""
        held: Changes = {"results": self.held_results, "meta": self._held_meta}
        return {space: changes for space, changes in held.items() if changes}

    def _apply(self, changes: Changes) -> None:
        with self._rolled_back_on_failure():
            if changes:
                with step("index.write", changes=_number_of(changes)):
                    self._backend.write(changes)
            with step("index.commit"):
                self._backend.commit()

    def hand_on(self) -> None:
        """Let the backend's transaction have what is held: it is as much as memory is given for."""
        with self._lock:
            held = self._held()
            self._let_go()
            self._is_handed_on = True
            try:
                with step("index.write", changes=_number_of(held)):
                    self._backend.write(held)
            except BaseException:
                self._undo(_BY_A_FAILURE)
                raise

    def _undo(self, depth: int) -> None:
        self._undone = (self._serial, depth)
        is_handed_on = self._is_handed_on
        self._forget()
        if is_handed_on:
            self._backend.rollback()

    def _forget(self) -> None:
        self._depth = 0
        self.owner = 0
        self._let_go()
        self._is_handed_on = False

    def _let_go(self) -> None:
        self.held_results, self._held_meta, self._held_bytes = {}, {}, 0

    @contextlib.contextmanager
    def _rolled_back_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._backend.rollback()
            raise

    def _leave(self, thread: int) -> None:
        self._blocks[thread] -= 1
        if not self._blocks[thread]:
            del self._blocks[thread]

    def _check_thread(self, what: str) -> None:
        if self.owner not in (0, get_ident()):
            raise Invalid(
                f"{self._backend.address}: another thread has a session open, so this one cannot {what}.",
                code="session.other-thread",
                about=self._backend.address,
                unchanged="the index and the session",
                next_step="let one thread do the writing, or wait for the other's commit; reading is fine",
            )

    def _check_not_undone(self) -> None:
        if get_ident() in self._blocks:
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
