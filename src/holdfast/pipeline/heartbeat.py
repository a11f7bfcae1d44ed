"""The heartbeat thread of a driver: tells the store every few seconds that it lives, and at the end how it ended."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator

from holdfast.checkpoints.heartbeat import EVERY, Heartbeat, RunState, beat
from holdfast.checkpoints.lease import Lease
from holdfast.errors import Fenced, HoldfastError, code_of
from holdfast.storage.objects.store import ObjectStore

log = logging.getLogger("holdfast.spark")
STOP_WITHIN = 5.0
"""Seconds that the end of a run waits for its last heartbeat."""

End = tuple[RunState, str | None]
"""A state, and the reason for a failure."""


class HeartbeatThread:
    """Writes the heartbeat of one claim, from `start` to `stop`. It has no part in any epoch.

    Guarantees: at most one write every `every` seconds and one at the end; a failing one is logged and changes nothing
    else; the heartbeat of a newer generation is never overwritten.
    """

    def __init__(
        self,
        objects: ObjectStore,
        lease: Lease,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._objects = copy.copy(objects)  # a handle belongs to one thread
        self._lease = lease.through(self._objects)
        self._every = every
        self._clock = clock
        self._state: Callable[[], End] = lambda: ("running", None)
        self._asked = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        self.fenced: Fenced | None = None
        """The error that says who has taken over, once the thread has found out."""

    def start(self) -> None:
        self._thread.start()

    @contextlib.contextmanager
    def during_start(self) -> Iterator[None]:
        """Write heartbeats from now on. If the block raises, the last one says so; else the query's run writes it."""
        self.start()
        try:
            yield
        except BaseException as error:
            self.stop(("failed", code_of(error)))
            raise

    def follow(self, state: Callable[[], End]) -> None:
        """Ask `state` before each heartbeat, so that the end of a query shows even if nobody awaits it."""
        self._state = state

    def stop(self, end: End | None = None) -> None:
        """Write the last heartbeat and end the thread. Waits a few seconds at most. Fine to call twice."""
        if end is not None:
            self.follow(lambda: end)
        self._asked.set()
        self._thread.join(STOP_WITHIN)

    def _run(self) -> None:
        is_first = True
        while True:
            is_last = self._asked.is_set()
            end = self._look()
            self._beat(*(("failed", None) if is_last and end[0] == "running" else end), is_first=is_first)
            if is_last or end[0] != "running" or self.fenced:
                return
            is_first = False
            self._asked.wait(self._every)

    def _look(self) -> End:
        try:
            return self._state()
        except Exception:  # Spark's JVM is gone; a caller that awaits the query hears of it
            log.debug("the state of the query is not known", exc_info=True)
            return "running", None

    def _beat(self, state: RunState, reason: str | None, *, is_first: bool) -> None:
        record = self._lease.record
        started = record.started_ms or record.claimed_ms
        sign = Heartbeat(record.generation, record.owner, started, state, int(self._clock() * 1000), reason)
        try:
            if not beat(self._objects, sign, is_first=is_first):
                self._lease.check()
            self._is_failing = False
        except Fenced as error:
            self.fenced = error
            log.warning("%s", error.message)
        except Exception as error:  # a heartbeat is a courtesy: the pipeline goes on without
            level = logging.DEBUG if self._is_failing else logging.WARNING
            self._is_failing = True
            why = error.message if isinstance(error, HoldfastError) else repr(error)
            log.log(level, "the heartbeat could not be written; the pipeline goes on: %s", why)
