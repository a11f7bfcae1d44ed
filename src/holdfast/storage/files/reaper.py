"""Letting go of removed files without waiting for their blocks to be freed.

A file's blocks are freed when it has neither a name nor an open descriptor, and freeing them takes a journalling file
system several times as long as taking the name away. So a descriptor is held over the removal and closed by a thread
aside. What is visible changes at once, as always; only the space comes back a moment later.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator

MOST_WAITING = 64

_waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
_thread: threading.Thread | None = None


@contextlib.contextmanager
def freed_aside(path: str) -> Iterator[None]:
    """Let the thread free the blocks of the file with this name, if the block of code removes the name."""
    descriptor = _hold(path)
    try:
        yield
    finally:
        if descriptor is not None:
            _let_go(descriptor)


def _hold(path: str) -> int | None:
    if not hasattr(os, "O_PATH"):
        return None
    try:
        return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # not there, or not ours to look at: then there is nothing to hold


def _let_go(descriptor: int) -> None:
    global _thread
    if _waiting.qsize() >= MOST_WAITING:
        os.close(descriptor)
        return
    if _thread is None or not _thread.is_alive():  # none yet, or left behind by a fork
        _thread = threading.Thread(target=_close_for_ever, name="holdfast-reaper", daemon=True)
        _thread.start()
    _waiting.put(descriptor)


def _close_for_ever() -> None:
    while True:
        os.close(_waiting.get())
