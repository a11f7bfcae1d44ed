"""Waiting for a condition that this process or another one makes true."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.errors import Unavailable

POLL = 0.05
"""Seconds between two looks when nothing was written through this object: others do not tell us."""


def wait_until(is_so: Callable[[], bool], changed: threading.Condition, timeout: float, what: str, wanted: str) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable(
                f"{what} did not come to {wanted} within {timeout:g} seconds.",
                code="wait.timeout",
                about=what,
                unchanged="everything",
                next_step="see whether its worker runs and is healthy, then wait again",
            )
        with changed:
            changed.wait(min(POLL, left))
