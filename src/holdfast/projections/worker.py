"""A loop that keeps several projections up to date."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.base.arguments import refused
from holdfast.base.stop_request import StopRequest
from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid, Unavailable
from holdfast.projections import worker_lease
from holdfast.projections.batch import DENIED
from holdfast.projections.projection import ProjectionLike, check_projection
from holdfast.projections.runner import ProjectionRunner
from holdfast.projections.state import FailedEvent
from holdfast.projections.worker_lease import WorkerLease

log = logging.getLogger("holdfast.projections")

State = Literal["starting", "running", "idle", "waiting", "retrying", "failed", "stopped"]
TURN = 10
"""Batches of one projection in a turn, before the next projection."""
LONGEST_PAUSE = 60.0


class ProjectionHealth(msgspec.Struct, frozen=True):
    """The health of one projection of a worker."""

    state: State
    """`waiting`: another worker has the lease. `retrying`: the store failed, or an event; the worker tries again.
    `failed`: stopped, usually at an event."""
    position: int = 0
    last_success_ms: int | None = None
    """The time of the last successful turn."""
    error: str | None = None


class Health(msgspec.Struct, frozen=True):
    """The state of a worker."""

    is_running: bool
    projections: dict[str, ProjectionHealth]

    @property
    def is_healthy(self) -> bool:
        """It runs, and nothing has failed or keeps failing."""
        states = {found.state for found in self.projections.values()}
        return self.is_running and not states & {"failed", "retrying", "stopped"}


class _Turn:
    """The worker's record of one projection."""

    def __init__(self, projection: ProjectionLike) -> None:
        self.projection = projection
        self.health = ProjectionHealth("starting")
        self.lease: WorkerLease | None = None
        self.failures = 0
        self.not_before = 0.0
        self.failed: FailedEvent | None = None
        """The event that waits for its next attempt."""


class ProjectionWorker:
    """Runs several projections in turn, as soon as there are new events, until it is stopped.

    Of several workers, in any process, one runs a projection and the others wait for its lease. A projection
    whose handler fails stops at that event, or waits there for the next attempt, and the others go on. `Unavailable`
    is retried with increasing pauses.
    """

    def __init__(
        self, runner: ProjectionRunner, projections: Sequence[ProjectionLike], *, tick: float = 1.0, lease: float = 30.0
    ) -> None:
        """`tick` is how many seconds may pass until events from other processes are noticed, `lease` how many seconds a
        dead worker blocks the others."""
        for projection in projections:
            check_projection(projection)
        self._turns = {projection.name: _Turn(projection) for projection in projections}
        if len(self._turns) != len(projections):
            raise refused("projections", "two of them have the same name")
        self._runner = runner
        self._store = runner.store
        self._tick = tick
        self._lease = lease
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stopping = StopRequest()
        self._is_running = False

    def run(self) -> None:
        """Work until `stop`, then finish the current batch, release the leases, and return."""
        self._is_running = True
        try:
            while not self._stopping.is_made():
                if not self.turn():
                    self._store.wait_for_news(self._idle_seconds(), unless=self._stopping.is_made)
        finally:
            self._is_running = False
            self._release_all()

    def stop(self) -> None:
        """End the loop after the current batch. May be called from any thread, and from a signal handler."""
        self._stopping.make()
        # In a thread: a signal handler may run while this thread holds the condition, and must not wait for it.
        threading.Thread(target=self._store.notify, daemon=True).start()

    def turn(self) -> bool:
        """Give every projection one turn. Returns whether one of them has more to do."""
        has_more = False
        for turn in self._turns.values():
            if self._stopping.is_made():
                return False
            if turn.health.state != "failed" and time.monotonic() >= turn.not_before:
                has_more = self._take_turn(turn) or has_more
        return has_more

    def resume(self, name: str) -> None:
        """Resume a projection that has failed, in the next turn."""
        turn = self._turns[name]
        turn.failures, turn.not_before = 0, 0.0
        turn.health = msgspec.structs.replace(turn.health, state="starting", error=None)

    def health(self) -> Health:
        return Health(self._is_running, {name: turn.health for name, turn in self._turns.items()})

    def _take_turn(self, turn: _Turn) -> bool:
        name = turn.projection.name
        failed_before, turn.failed = turn.failed, None
        try:
            if not self._has_lease(turn):
                turn.health = msgspec.structs.replace(turn.health, state="waiting", error=None)
                return False
            done = self._runner.catch_up_persistent(
                turn.projection, batches=TURN, lease=turn.lease, stop=self._stopping.is_made, wait=False
            )
        except Exception as error:
            self._react(turn, error)
            return False
        turn.failures = 0
        turn.failed = done.failed
        if done.failed is not None:
            why = f"event {done.failed.position} failed, attempt {done.failed.attempts}: {done.failed.error}"
            if done.failed != failed_before:
                log.warning("projection %s will retry an event: %s", name, why)
            turn.health = msgspec.structs.replace(turn.health, state="retrying", position=done.position, error=why)
            return False
        state: State = "idle" if done.is_at_the_end else "running"
        turn.health = ProjectionHealth(state, done.position, self._store.now_ms())
        return not done.is_at_the_end

    def _idle_seconds(self) -> float:
        """How long to wait for news: until the next retry, at most one tick."""
        retries = [turn.failed.retry_ms for turn in self._turns.values() if turn.failed is not None]
        left = (min(retries) - self._store.now_ms()) / 1000 if retries else self._tick
        return max(0.0, min(self._tick, left))

    def _react(self, turn: _Turn, error: Exception) -> None:
        """Wait for the lease, try again later, or stop the projection."""
        code = error.code if isinstance(error, HoldfastError) else ""
        if code == "projection.fenced":
            log.warning("%s", error)
            turn.lease = None
            turn.health = msgspec.structs.replace(turn.health, state="waiting", error=str(error))
        elif isinstance(error, Unavailable | Conflict) or code in (DENIED, "projection.rebuild-fenced"):
            turn.failures += 1
            turn.not_before = time.monotonic() + min(LONGEST_PAUSE, 0.1 * 2**turn.failures)
            log.warning("projection %s will be retried: %s", turn.projection.name, error)
            turn.health = msgspec.structs.replace(turn.health, state="retrying", error=str(error))
        elif isinstance(error, Fenced):
            self._fail(turn, error, " This worker cannot write again: start it anew when the other process has ended.")
        else:
            self._fail(turn, error)

    def _fail(self, turn: _Turn, error: Exception, then: str = "") -> None:
        log.error(
            "projection %s has stopped: %s%s",
            turn.projection.name,
            error,
            then,
            exc_info=not _is_handler_error_without_cause(error),
        )
        turn.health = msgspec.structs.replace(turn.health, state="failed", error=str(error) + then)
        self._release(turn)

    def _has_lease(self, turn: _Turn) -> bool:
        if turn.lease is None:
            turn.lease = worker_lease.acquire(
                self._store.kv, turn.projection.name, self._holder, self._lease, self._store.now_ms
            )
        else:
            turn.lease.renew()
        return turn.lease is not None

    def _release_all(self) -> None:
        for turn in self._turns.values():
            self._release(turn)
            if turn.health.state != "failed":
                turn.health = msgspec.structs.replace(turn.health, state="stopped")

    def _release(self, turn: _Turn) -> None:
        if turn.lease is not None:
            try:
                turn.lease.release()
            except HoldfastError as error:  # the lease expires by itself
                log.warning("the lease of projection %s was not released: %s", turn.projection.name, error)
            turn.lease = None


def _is_handler_error_without_cause(error: Exception) -> bool:
    return isinstance(error, Invalid) and error.code == "projection.handler" and error.__cause__ is None
