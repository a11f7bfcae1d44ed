"""Collects everything that a run reports in one queue, which one thread shows.

Events come from the thread that runs the pipeline and from signal handlers, which may interrupt any line: printing
there is not safe. Putting into a `SimpleQueue` is safe everywhere.
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
MOST_WAITING = 10_000
"""Events and lines that may wait for the screen. More are dropped: a screen never stops a pipeline."""


class _Step(msgspec.Struct, frozen=True):
    name: str | None


class _End(msgspec.Struct, frozen=True):
    outcome: str
    is_good: bool


class Listening:
    """Shows a run on a screen, from its beginning to its outcome."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._queue: queue.SimpleQueue[Event | _Step | _End | str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._show, name="holdfast-screen", daemon=True)
        self._is_shut = False
        self._has_dropped = False
        self.has_heard = False
        """Whether any pipeline has reported an event."""

    def line(self, text: str) -> None:
        """Show a line that other code has printed."""
        self._put(text)

    @contextlib.contextmanager
    def listening(self, level: int = logging.WARNING) -> Iterator[None]:
        """Listen while the block runs. Later events are dropped; `finish` must follow."""
        with _logged(self._put, level):
            removals = [watch(self._hear), steps.observe(self._step)]
            self._thread.start()
            try:
                yield
            finally:
                for remove in removals:
                    remove()

    def finish(self, outcome: str, *, is_good: bool) -> None:
        """Show the events that are still queued, then the outcome."""
        self._queue.put(_End(outcome, is_good))
        self._thread.join()

    @property
    def waiting(self) -> int:
        """How many events and lines wait for the screen."""
        return self._queue.qsize()

    def _put(self, item: Event | _Step | str) -> None:
        """Queue an item, unless the screen has failed or is too far behind. Safe in a signal handler."""
        if self._is_shut or self._queue.qsize() >= MOST_WAITING:
            self._has_dropped = True
        else:
            self._queue.put(item)

    def _hear(self, event: Event) -> None:
        self.has_heard = True
        self._put(event)

    def _step(self, name: str, phase: steps.Phase, _: float) -> None:
        if name in DOING:
            self._put(_Step(name if phase == "begin" else None))

    def _show(self) -> None:
        """Show events until the end. If the screen fails, nothing more is shown, and the pipeline goes on."""
        with contextlib.suppress(OSError, ValueError), self._screen.shown():
            while not self._show_next():
                pass
        self._is_shut = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def _show_next(self) -> bool:
        if self._has_dropped and self._queue.empty():
            self._has_dropped = False
            self._screen.line("The screen could not keep up: some events and lines before this one were not shown.")
        try:
            item = self._queue.get(timeout=TICK)
        except queue.Empty:
            self._screen.tick()
            return False
        match item:
            case _End():
                self._screen.end(item.outcome, is_good=item.is_good)
                return True
            case _Step():
                self._screen.step(item.name)
            case str():
                self._screen.line(item)
            case _:
                self._screen.event(item)
        return False


class _ToNotices(logging.Handler):
    """Shows the library's log records as notices, unless the pipeline's file has configured logging itself."""

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
    # Without logging configured, py4j's records would be printed, and it raises the same errors anyway.
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
# JVM, which inherits both streams: so they are redirected as file descriptors, before any process is started.


class ReservedStream:
    """A stream that only we write to; the output of other code is redirected."""

    def __init__(self, stream: IO[str], drain: Callable[[], None] = lambda: None) -> None:
        self.stream = stream
        self.drain = drain
        """Pass on everything that has been printed so far; later output may be lost."""


@contextlib.contextmanager
def set_aside_output() -> Iterator[ReservedStream]:
    """Reserve standard output for us; what other code prints there goes to standard error."""
    if not _has_descriptor(sys.stdout, OUT):  # no descriptor: children cannot print to it
        ours = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield ReservedStream(ours)
        return
    _flush()
    with _saved(OUT) as saved, open(os.dup(saved), "w", encoding="utf-8") as stream:
        os.dup2(ERR, OUT)
        yield ReservedStream(stream)


@contextlib.contextmanager
def captured_terminal(take: Callable[[str], None]) -> Iterator[ReservedStream]:
    """Reserve the terminal for us; what other code prints there is passed to `take`, line by line.

    Standard error is left alone if it is not a terminal.
    """
    _flush()
    captured = [number for number in (OUT, ERR) if os.isatty(number)]
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        saved = [stack.enter_context(_saved(number)) for number in captured]
        terminal = stack.enter_context(open(os.dup(saved[0]), "w", encoding="utf-8", errors="backslashreplace"))
        for number in captured:
            os.dup2(writer, number)
        os.close(writer)
        pump = _Pump(reader, take)
        pump.start()
        try:
            yield ReservedStream(terminal, pump.stop)
        finally:
            pump.stop()


class _Pump(threading.Thread):
    """A thread that reads a pipe and passes its lines on."""

    def __init__(self, reader: int, take: Callable[[str], None]) -> None:
        super().__init__(name="holdfast-printed", daemon=True)
        self._reader = reader
        self._take = take
        self._rest = b""
        self._is_stopped = False
        self._woken, self._wake = os.pipe()

    def stop(self) -> None:
        """Pass on the lines that are in the pipe, and end. Does not wait for its end: the JVM may keep it open."""
        if self._is_stopped:
            return
        self._is_stopped = True
        _flush()
        os.close(self._wake)
        self.join()
        os.close(self._woken)
        os.close(self._reader)

    def run(self) -> None:
        waiting = select.poll()  # `select` takes no descriptor above 1023
        waiting.register(self._reader, select.POLLIN)
        waiting.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if self._reader not in ready:  # woken by `stop`, and the pipe is empty
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
def _saved(number: int) -> Iterator[int]:
    """A copy of a descriptor; the descriptor is restored from it at the end."""
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
