"""Reports of a running pipeline: finished epochs and notices, for every watcher in the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from holdfast.base.steps import Phase, observe


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
    """Per source, how far it is behind, where the source tells."""
    steps: dict[str, float]
    """Seconds per step of the protocol."""
    sinks: dict[str, str]
    checkpoint_bytes: int
    """What it wrote of state: batch objects and operators, less the manifest."""
    is_replay: bool = False


class Notice(msgspec.Struct, frozen=True):
    """Something worth a line: a start, a recovery, a restart, a stop."""

    pipeline: str
    text: str
    level: str = "info"


Event = EpochReport | Notice
Watcher = Callable[[Event], None]
_watchers: list[Watcher] = []
log = logging.getLogger("holdfast.spark")


def watch(watcher: Watcher) -> Callable[[], None]:
    """Call `watcher` with every event of every pipeline in this process; the returned function takes it off again."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


def tell(event: Event) -> None:
    """Pass an event to every watcher."""
    for watcher in list(_watchers):
        try:
            watcher(event)
        except Exception:  # a failing watcher must not end the pipeline
            log.warning("a watcher of pipelines failed", exc_info=True)


class StepClock:
    """Adds up the seconds of this process's steps between two looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._remove = observe(self._observe)

    def _observe(self, name: str, phase: Phase, seconds: float) -> None:
        if phase != "begin":
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def taken(self) -> dict[str, float]:
        """Seconds per step since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return seconds

    def close(self) -> None:
        """Look no more. Fine if called again."""
        self._remove()
        self._remove = lambda: None
