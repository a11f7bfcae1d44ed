"""The one way to call a function for many items at once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(function: Callable[[T], R], items: Iterable[T], *, at_once: int, name: str, few: int = 1) -> list[R]:
    """The results in the order of the items, of calls in up to `at_once` threads; a `few` items are not worth threads.

    The calls are part of the caller's block of steps (`observed_by`). Raises the failure of the first item that has
    one, once no call is running any more; calls that have not begun by then are left out.
    """
    waiting = list(items)
    if len(waiting) <= few:
        return [function(item) for item in waiting]
    with ThreadPoolExecutor(min(at_once, len(waiting)), thread_name_prefix=f"holdfast-{name}") as threads:
        running = [threads.submit(contextvars.copy_context().run, function, item) for item in waiting]
        try:
            return [one.result() for one in running]
        finally:
            for one in running:
                one.cancel()
