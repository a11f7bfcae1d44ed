"""Named durable actions.

Each one is a log event, a place to hang a metric, and a point where a test can end the process.
Observers see (name, "begin"), then (name, "end") or (name, "failed").
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal

Phase = Literal["begin", "end", "failed"]
Observer = Callable[[str, Phase, float], None]
"""Called with the step's name, its phase and the seconds since it began."""

log = logging.getLogger("holdfast.steps")
_observers: list[Observer] = []


def observe(observer: Observer) -> Callable[[], None]:
    """Call `observer` around every step of this process; the returned function takes it off again."""
    _observers.append(observer)
    return lambda: _observers.remove(observer)


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

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        if not _observers and not log.isEnabledFor(logging.DEBUG):
            return
        seconds = time.perf_counter() - self.began
        phase: Phase = "end" if kind is None else "failed"
        log.debug("%s %s %.6fs %s", self.name, phase, seconds, self.details or "")
        for observer in _observers:
            observer(self.name, phase, seconds)
