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
from holdfast.base.stopping import StopRequest
from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid, Unavailable
from holdfast.projections import worker_lease
from holdfast.projections.projection import ProjectionLike, check_projection
from holdfast.projections.runner import ProjectionRunner
from holdfast.projections.worker_lease import WorkerLease

log = logging.getLogger("holdfast.projections")

State = Literal["starting", "running", "idle", "waiting", "retrying", "failed", "stopped"]
TURN = 10
"""How many batches of one projection before the next has its turn."""
LONGEST_PAUSE = 60.0


class ProjectionHealth(msgspec.Struct, frozen=True):
    """One projection of a worker."""

    state: State
    """`waiting`: another worker has it. `retrying`: the store did not do its part. `failed`: stopped at an event."""
    position: int = 0
    last_success_ms: int | None = None
    """When a turn last went well: not when one was last tried."""
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
    """The worker's notes on one projection."""

    def __init__(self, projection: ProjectionLike) -> None:
        self.projection = projection
        self.health = ProjectionHealth("starting")
        self.lease: WorkerLease | None = None
        self.failures = 0
        self.not_before = 0.0


class ProjectionWorker:
    """Runs several projections in turn, as soon as there is something new, until it is stopped.

    Of several workers, in any process, one works on a projection and the others wait for its lease. A projection
    whose handler fails stops at that event, and the others go on. `Unavailable` is tried again, later each time.
    """

    def __init__(
        self, runner: ProjectionRunner, projections: Sequence[ProjectionLike], *, tick: float = 1.0, lease: float = 30.0
    ) -> None:
        """`tick` is how many seconds may pass before events of other processes are seen, `lease` how long a worker that
        died holds up the others."""
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
        """Work until `stop`, then finish the batch at hand, release the leases, and return."""
        self._is_running = True
        try:
            while not self._stopping.is_made():
                if not self.turn():
                    self._store.wait_for_news(self._tick)
        finally:
            self._is_running = False
            self._let_go()

    def stop(self) -> None:
        """End the loop after the batch at hand. From any thread, and from a signal handler."""
        self._stopping.make()
        # Not waited for: a signal handler may run while this thread holds the condition.
        threading.Thread(target=self._store.notify, daemon=True).start()

    def turn(self) -> bool:
        """Give every projection one turn; whether one of them has more to do."""
        has_more = False
        for turn in self._turns.values():
            if self._stopping.is_made():
                return False
            if turn.health.state != "failed" and time.monotonic() >= turn.not_before:
                has_more = self._take_turn(turn) or has_more
        return has_more

    def resume(self, name: str) -> None:
        """Try a projection again that has stopped at an event."""
        turn = self._turns[name]
        turn.failures, turn.not_before = 0, 0.0
        turn.health = msgspec.structs.replace(turn.health, state="starting", error=None)

    def health(self) -> Health:
        return Health(self._is_running, {name: turn.health for name, turn in self._turns.items()})

    def _take_turn(self, turn: _Turn) -> bool:
        name = turn.projection.name
        try:
            if not self._has_lease(turn):
                turn.health = msgspec.structs.replace(turn.health, state="waiting", error=None)
                return False
            done = self._runner.catch_up_persistent(
                turn.projection, batches=TURN, lease=turn.lease, stop=self._stopping.is_made
            )
        except Fenced as error:
            if error.code != "projection.fenced":
                self._fail(turn, error)
                return False
            log.warning("%s", error)
            turn.lease = None
            turn.health = msgspec.structs.replace(turn.health, state="waiting", error=str(error))
            return False
        except (Unavailable, Conflict) as error:
            turn.failures += 1
            turn.not_before = time.monotonic() + min(LONGEST_PAUSE, 0.1 * 2**turn.failures)
            log.warning("projection %s is tried again: %s", name, error)
            turn.health = msgspec.structs.replace(turn.health, state="retrying", error=str(error))
            return False
        except Exception as error:
            self._fail(turn, error)
            return False
        turn.failures = 0
        state: State = "idle" if done.is_at_the_end else "running"
        turn.health = ProjectionHealth(state, done.position, self._store.now_ms())
        return not done.is_at_the_end

    def _fail(self, turn: _Turn, error: Exception) -> None:
        log.error("projection %s has stopped: %s", turn.projection.name, error, exc_info=not _is_told(error))
        turn.health = msgspec.structs.replace(turn.health, state="failed", error=str(error))
        self._release(turn)

    def _has_lease(self, turn: _Turn) -> bool:
        if turn.lease is None:
            turn.lease = worker_lease.acquire(
                self._store.kv, turn.projection.name, self._holder, self._lease, self._store.now_ms
            )
        else:
            turn.lease.renew()
        return turn.lease is not None

    def _let_go(self) -> None:
        for turn in self._turns.values():
            self._release(turn)
            if turn.health.state != "failed":
                turn.health = msgspec.structs.replace(turn.health, state="stopped")

    def _release(self, turn: _Turn) -> None:
        if turn.lease is not None:
            try:
                turn.lease.release()
            except HoldfastError as error:  # it runs out by itself
                log.warning("the lease of projection %s was not given back: %s", turn.projection.name, error)
            turn.lease = None


def _is_told(error: Exception) -> bool:
    return isinstance(error, Invalid) and error.code == "projection.handler" and error.__cause__ is None
