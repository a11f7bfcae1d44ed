"""A stop request that a signal handler can make safely."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


class StopRequest:
    """A flag that says whether a stop was requested.

    Not a `threading.Event`: its methods take a lock, and a signal may interrupt the thread that holds it, in the middle
    of `wait`. The signal handler, which runs in that thread, would then deadlock.
    """

    def __init__(self) -> None:
        self._is_made = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def make(self) -> None:
        """Request the stop. Safe everywhere, also in a signal handler that interrupts another one."""
        self._is_made = True
        self._wakes.put(None)

    def is_made(self) -> bool:
        return self._is_made

    def wait(self, seconds: float) -> None:
        """Sleep for this many seconds, or until the request is made. Only one thread may wait."""
        if not self._is_made:
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=seconds)


@contextlib.contextmanager
def stop_on_signals(
    handle: Callable[[signal.Signals], object],
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> Iterator[None]:
    """Within the block, call `handle` for these signals; afterwards restore the previous handlers.

    `handle` runs between any two instructions of the main thread, so it should only make a `StopRequest`, or raise.
    Does nothing outside the main thread: Python delivers signals to no other.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _: FrameType | None) -> None:
        handle(signal.Signals(number))

    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    try:
        for number in signals:
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)  # None: not set by Python
