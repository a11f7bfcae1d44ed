"""Collects everything that a run reports in one queue, which one thread shows.

Events come from the thread that runs the pipeline and from signal handlers, which may interrupt any line: nothing may
be printed there. Putting into a `SimpleQueue` is safe everywhere.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO

import msgspec

from holdfast.base import steps
from holdfast.cli.run.epochs import DOING
from holdfast.cli.run.screens import Screen
from holdfast.pipeline.reports import Event
from holdfast.spark import Notice, watch

TICK = 0.25
OUT, ERR = 1, 2
CHUNK = 1 << 16
LONGEST_LINE = 1 << 20


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
        """Whether any event has come from a pipeline."""

    def line(self, text: str) -> None:
        """Something was printed."""
        self._said.put(text)

    @contextlib.contextmanager
    def listening(self, level: int = logging.WARNING) -> Iterator[None]:
        """Listen while the block runs. Later events are dropped; `finish` must follow."""
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
        """Show events until the end. If the screen fails, showing ends and the pipeline goes on."""
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
    # Without a configured log, py4j's records would be printed; it raises the same errors as well.
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


# Standard output and standard error while a pipeline runs. The file prints, Python's workers print, and so does Spark's
# JVM, which has its own copies of both streams: they are set aside as file descriptors, before any of them is started.


class Way:
    """A stream that is ours alone while others print."""

    def __init__(self, stream: IO[str], drain: Callable[[], None] = lambda: None) -> None:
        self.stream = stream
        self.drain = drain
        """Take note of what has been printed so far; what comes later may be lost."""


@contextlib.contextmanager
def set_aside_output() -> Iterator[Way]:
    """Reserve standard output for us; what other code prints there goes to standard error."""
    if not _has_descriptor(sys.stdout, OUT):  # nothing that a child could print to
        ours = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield Way(ours)
        return
    _flush()
    with _kept(OUT) as kept, open(os.dup(kept), "w", encoding="utf-8") as stream:
        os.dup2(ERR, OUT)
        yield Way(stream)


@contextlib.contextmanager
def captured_terminal(take: Callable[[str], None]) -> Iterator[Way]:
    """Reserve the terminal for us; what other code prints there is passed on to `take`, line by line.

    A standard error that goes elsewhere is left alone.
    """
    _flush()
    captured = [number for number in (OUT, ERR) if os.isatty(number)]
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(_kept(number)) for number in captured]
        terminal = stack.enter_context(open(os.dup(kept[0]), "w", encoding="utf-8", errors="backslashreplace"))
        for number in captured:
            os.dup2(writer, number)
        os.close(writer)
        pump = _Pump(reader, take)
        pump.start()
        try:
            yield Way(terminal, pump.stop)
        finally:
            pump.stop()


class _Pump(threading.Thread):
    """Reads a pipe and passes its lines on."""

    def __init__(self, reader: int, take: Callable[[str], None]) -> None:
        super().__init__(name="holdfast-printed", daemon=True)
        self._reader = reader
        self._take = take
        self._rest = b""
        self._is_stopped = False
        self._woken, self._wake = os.pipe()

    def stop(self) -> None:
        """Pass on what is there already, and end. Does not wait for the pipe's end: the JVM may hold on to its own."""
        if self._is_stopped:
            return
        self._is_stopped = True
        _flush()
        os.close(self._wake)
        self.join()
        os.close(self._woken)
        os.close(self._reader)

    def run(self) -> None:
        while True:
            ready = select.select([self._reader, self._woken], [], [])[0]
            if self._reader not in ready:  # it is empty, and so it stays: we have been woken
                break
            piece = os.read(self._reader, CHUNK)
            if not piece:
                break
            self._split(piece)
        if self._rest:
            self._pass_on(self._rest)

    def _split(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._pass_on(line)
        if len(self._rest) > LONGEST_LINE:
            self._pass_on(self._rest)
            self._rest = b""

    def _pass_on(self, line: bytes) -> None:
        self._take(line.decode("utf-8", "backslashreplace").rstrip("\r"))


@contextlib.contextmanager
def _kept(number: int) -> Iterator[int]:
    """A copy of a descriptor, which is put back in its place at the end."""
    copy = os.dup(number)
    try:
        yield copy
    finally:
        _flush()
        os.dup2(copy, number)
        os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _has_descriptor(stream: IO[str], number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError, io.UnsupportedOperation):
        return False
