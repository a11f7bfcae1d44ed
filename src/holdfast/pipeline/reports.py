"""Reports of a running pipeline: finished epochs and notices, and the listeners that get them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import msgspec

from holdfast.base.steps import Phase, observed_by

T = TypeVar("T")
log = logging.getLogger("holdfast.spark")


class EpochReport(msgspec.Struct, frozen=True):
    """One epoch that is done."""

    pipeline: str
    epoch: int
    lineage: int
    checkpoint_id: int
    rows: int
    rows_per_second: float
    seconds: float
    """From the trigger until Spark counted it as done."""
    watermark: int | None
    lag: dict[str, str]
    """Per source, how far it is behind, where the source reports that."""
    steps: dict[str, float]
    """Seconds per step of the protocol."""
    sinks: dict[str, str]
    checkpoint_bytes: int
    """The bytes that its checkpoint wrote: manifest, operator states and batch objects."""
    is_replay: bool = False
    refused: dict[str, int] = {}
    """Per sink, how many rows went to the dead letters in this run of the epoch. Sinks without any are left out."""


class Notice(msgspec.Struct, frozen=True):
    """Something worth a line: a start, a recovery, a restart, a stop."""

    pipeline: str
    text: str
    level: str = "info"


Event = EpochReport | Notice
Watcher = Callable[[Event], None]


class Listeners(Generic[T]):
    """Functions that are called with each report. None of them can fail the epoch that is reported."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._functions: list[Callable[[T], object]] = []
        self._failed: list[Callable[[T], object]] = []

    def add(self, function: Callable[[T], object]) -> Callable[[], None]:
        """Call `function` from now on; the returned function removes it."""
        self._functions.append(function)
        return lambda: self._functions.remove(function)

    def tell(self, report: T) -> None:
        """Call every function. The first exception of each is logged; later ones are ignored."""
        for function in list(self._functions):
            try:
                function(report)
            except Exception:
                if function not in self._failed:
                    self._failed.append(function)
                    log.warning("%s failed; it is called again, and no epoch fails of it", self._what, exc_info=True)


_watchers: Listeners[Event] = Listeners("a watcher of pipelines")


def watch(watcher: Watcher) -> Callable[[], None]:
    """Call `watcher` with every event of every pipeline in this process; the returned function removes it."""
    return _watchers.add(watcher)


def tell(event: Event) -> None:
    """Pass an event to every watcher."""
    _watchers.tell(event)


class StepClock:
    """Adds up the seconds of steps between two calls of `taken`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}

    def running(self) -> AbstractContextManager[None]:
        """While the block runs, its steps are added up; those of other pipelines in the process are not."""
        return observed_by(self._observe)

    def _observe(self, name: str, phase: Phase, seconds: float) -> None:
        if phase != "begin":
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def taken(self) -> dict[str, float]:
        """Seconds per step since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return seconds
