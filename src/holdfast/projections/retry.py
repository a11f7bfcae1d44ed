"""What follows when a handler fails: a retry later, a dead letter, or a stop. Pure; the same in process and on Spark.

Failures are counted in the projection's state record, so that the count outlives the process and the worker's lease:
however often a projection changes hands, an event is tried `OnError.retries` + 1 times.
"""

from __future__ import annotations

from typing import Literal

from holdfast.errors import Invalid
from holdfast.projections.batch import Failure, record_text
from holdfast.projections.projection import OnError, ProjectionLike
from holdfast.projections.state import FailedEvent

LONGEST_WAIT = 60.0

Verdict = Literal["again", "dead-letter", "stop"]


def attempts_at(position: int, before: FailedEvent | None) -> int:
    """How often an event has failed, this time included. `before` is the failed event in the projection's state."""
    return 1 + (before.attempts if before is not None and before.position == position else 0)


def decide(policy: OnError, attempts: int) -> Verdict:
    """What to do with an event that has failed this often."""
    return "again" if attempts <= policy.retries else policy.then


def pause(policy: OnError, attempts: int) -> float:
    """Seconds to wait before the next attempt, after this many failed ones."""
    return min(LONGEST_WAIT, policy.wait * 2.0 ** (attempts - 1))


def waiting(failure: Failure, attempts: int, policy: OnError, now_ms: int) -> FailedEvent:
    """The failed event, for the projection's state: how often it has failed, and when it is tried again."""
    retry_ms = now_ms + int(pause(policy, attempts) * 1000)
    return FailedEvent(failure.event.position, attempts, retry_ms, record_text(failure.why))


def seconds_left(failed: FailedEvent | None, policy: OnError, now_ms: int) -> float:
    """Seconds until the event may be tried again; 0.0 if it may be tried now.

    A time further away than the pause itself comes from a clock that has been set back since, or from another policy:
    the event may be tried now.
    """
    if failed is None:
        return 0.0
    left = (failed.retry_ms - now_ms) / 1000
    return left if 0 < left <= pause(policy, failed.attempts) else 0.0


def handler_failed(projection: ProjectionLike, failure: Failure, attempts: int) -> Invalid:
    event = failure.event
    times = f", {attempts} times" if attempts > 1 else ""
    return Invalid(
        f"Projection {projection.name!r} could not handle event {event.sequence} of stream {event.stream[:200]!r} "
        f"({event.type}, position {event.position}){times}: {failure.why}",
        code="projection.handler",
        about=f"projection {projection.name!r}",
        unchanged="its read model and its cursors, which hold everything before that event",
        next_step="correct the handler and catch up again, or put such events aside with OnError(then='dead-letter')",
    )
