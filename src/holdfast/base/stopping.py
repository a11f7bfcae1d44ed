"""A wish to stop, which signal handlers may utter."""

from __future__ import annotations

import contextlib
import queue


class StopRequest:
    """Whether somebody has asked for the end.

    Not a `threading.Event`: that takes a lock, and the thread that a signal interrupts may be the one that holds it,
    in the middle of waiting. Its handler would wait for ever then.
    """

    def __init__(self) -> None:
        self._is_made = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def make(self) -> None:
        """Ask for the end. Safe everywhere, also in a signal handler that interrupts another one."""
        self._is_made = True
        self._wakes.put(None)

    def is_made(self) -> bool:
        return self._is_made

    def wait(self, seconds: float) -> None:
        """Sleep for that long, or until the request is made. For one thread."""
        if not self._is_made:
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=seconds)
