"""Standard output and standard error while a pipeline runs.

The file prints, Python's workers print, and so does Spark's JVM, which has its own copies of both streams. What keeps
them from spoiling a picture or a stream of JSON has to be done to the file descriptors, before any of them is started.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO

OUT, ERR = 1, 2
CHUNK = 1 << 16
LONGEST_LINE = 1 << 20


class Way:
    """A stream that is ours alone while others print."""

    def __init__(self, stream: IO[str], drain: Callable[[], None] = lambda: None) -> None:
        self.stream = stream
        self.drain = drain
        """Take note of what has been printed so far; what comes later may be lost."""


@contextlib.contextmanager
def set_aside_output() -> Iterator[Way]:
    """A way to standard output that is ours alone; what everybody else prints there goes to standard error."""
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
    """A way to the terminal that is ours alone; what anybody else prints there is passed on to `take`, line by line.

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
