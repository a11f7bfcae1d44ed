"""One event loop in one thread, for libraries that know nothing but async."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def wait_for(work: Coroutine[Any, Any, _T], timeout: float) -> _T:
    """Run a coroutine on the loop of this process and wait. `TimeoutError` if it takes longer; it is then cancelled."""
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), _running())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="holdfast-bridge", daemon=True).start()
        return _loop


def _forget() -> None:
    """A forked child has no thread that runs the loop."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
