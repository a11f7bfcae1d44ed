"""Everything that a run says, in one queue, shown by one thread.

Events are told from whichever thread runs the pipeline, and from signal handlers in the middle of anything: nothing may
be printed there. Putting into a `SimpleQueue` is safe everywhere.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator

import msgspec

from holdfast.base import steps
from holdfast.cli.run.epochs import DOING
from holdfast.cli.run.screens import Screen
from holdfast.pipeline.reports import Event
from holdfast.spark import Notice, watch

TICK = 0.25


class _Step(msgspec.Struct, frozen=True):
    name: str | None


class _End(msgspec.Struct, frozen=True):
    outcome: str
    is_good: bool


class Listening:
    """Shows a run on a screen, from its beginning to its outcome."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._said: queue.SimpleQueue[Event | _Step | _End | str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._show, name="holdfast-screen", daemon=True)
        self.has_heard = False
        """Whether any pipeline has told anything."""

    def line(self, text: str) -> None:
        """Something was printed."""
        self._said.put(text)

    @contextlib.contextmanager
    def listening(self, level: int = logging.WARNING) -> Iterator[None]:
        """Listen while the block runs. What is told afterwards is not heard; `finish` must follow."""
        with _logged(self._said.put, level):
            removals = [watch(self._hear), steps.observe(self._step)]
            self._thread.start()
            try:
                yield
            finally:
                for remove in removals:
                    remove()

    def finish(self, outcome: str, *, is_good: bool) -> None:
        """Show what is left, then the outcome."""
        self._said.put(_End(outcome, is_good))
        self._thread.join()

    def _hear(self, event: Event) -> None:
        self.has_heard = True
        self._said.put(event)

    def _step(self, name: str, phase: steps.Phase, _: float) -> None:
        if name in DOING:
            self._said.put(_Step(name if phase == "begin" else None))

    def _show(self) -> None:
        """The pipeline goes on whatever becomes of its audience: a screen that fails is left alone."""
        with contextlib.suppress(OSError, ValueError), self._screen.shown():
            while not self._show_next():
                pass

    def _show_next(self) -> bool:
        try:
            said = self._said.get(timeout=TICK)
        except queue.Empty:
            self._screen.tick()
            return False
        match said:
            case _End():
                self._screen.end(said.outcome, is_good=said.is_good)
                return True
            case _Step():
                self._screen.step(said.name)
            case str():
                self._screen.line(said)
            case _:
                self._screen.event(said)
        return False


class _ToNotices(logging.Handler):
    """The library's log as notices, unless the pipeline's file has set up a log of its own."""

    def __init__(self, put: Callable[[Event], None]) -> None:
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and not getattr(record, "is_told", False):
            self._put(Notice(record.name.removeprefix("holdfast."), record.getMessage(), record.levelname.lower()))


@contextlib.contextmanager
def _logged(put: Callable[[Event], None], level: int) -> Iterator[None]:
    log = logging.getLogger("holdfast")
    handler = _ToNotices(put)
    handler.setLevel(level)
    before = log.level
    log.addHandler(handler)
    # What py4j logs where nobody has set up a log is an error that it raises as well.
    py4j, unheard = logging.getLogger("py4j"), logging.NullHandler()
    py4j.addHandler(unheard)
    if level < logging.WARNING:
        log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        py4j.removeHandler(unheard)
