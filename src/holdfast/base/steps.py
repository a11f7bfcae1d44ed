"""Named durable actions.

Each one is a log event, a place for a metric, and a point where a test can kill the process.
Observers see (name, "begin"), then (name, "end") or (name, "failed").

There are two kinds. `observe` sees every step of the process and may fail or stop it: for crash tests. `observed_by`
sees the steps of one block only and cannot harm them: for the timings of one of several pipelines in a process.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Literal

Phase = Literal["begin", "end", "failed"]
Observer = Callable[[str, Phase, float], None]
"""Called with the step's name, its phase and the seconds since it began."""

log = logging.getLogger("holdfast.steps")
_observers: list[Observer] = []
_listeners: ContextVar[tuple[Observer, ...]] = ContextVar("holdfast.steps", default=())
_has_failed: set[Observer] = set()


def observe(observer: Observer) -> Callable[[], None]:
    """Call `observer` around every step of this process; the returned function removes it.

    An exception of the observer is an exception of the step.
    """
    _observers.append(observer)
    return lambda: _observers.remove(observer)


@contextlib.contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """While the block runs, call `observer` around the steps in it.

    The first exception of the observer is logged, any other is ignored; no step fails of it. A helper thread counts as
    part of the block if it runs in a copy of its context: `contextvars.copy_context().run`.
    """
    token = _listeners.set((*_listeners.get(), observer))
    try:
        yield
    finally:
        _listeners.reset(token)
        _has_failed.discard(observer)


class step:  # noqa: N801 - reads as a statement: `with step("manifest.create"):`
    """One durable action. The name is stable: dashboards and crash tests rely on it."""

    __slots__ = ("began", "details", "name")

    def __init__(self, name: str, **details: object) -> None:
        self.name = name
        self.details = details

    def __enter__(self) -> None:
        self.began = time.perf_counter()
        for observer in _observers:
            observer(self.name, "begin", 0.0)
        for listener in _listeners.get():
            _call(listener, self.name, "begin", 0.0)

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        listeners = _listeners.get()
        if not _observers and not listeners and not log.isEnabledFor(logging.DEBUG):
            return
        seconds = time.perf_counter() - self.began
        phase: Phase = "end" if kind is None else "failed"
        log.debug("%s %s %.6fs %s", self.name, phase, seconds, self.details or "")
        for observer in _observers:
            observer(self.name, phase, seconds)
        for listener in listeners:
            _call(listener, self.name, phase, seconds)


def _call(listener: Observer, name: str, phase: Phase, seconds: float) -> None:
    try:
        listener(name, phase, seconds)
    except Exception:
        if listener not in _has_failed:
            _has_failed.add(listener)
            log.warning("a listener failed at step %s", name, exc_info=True)
