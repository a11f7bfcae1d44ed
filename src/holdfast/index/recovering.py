"""What to do when a source cannot go on from where it was: decided purely, carried out in one commit."""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import Struct

from holdfast.errors import NotFound
from holdfast.index.arguments import check_position, check_source_id, check_u64, refused
from holdfast.index.gap import Gap
from holdfast.index.index import Index

Policy = Literal["strict", "reset", "skip"]


class PositionUnavailable(NotFound):
    """A source no longer has the changes after its checkpoint: its log was cut, or is another one now.

    Raised by sources. `resumes_at` is where the source could go on instead, if it knows, and `resumes_after` the
    sequence of the last change before that place. Without `resumes_after` nobody knows how the changes will be counted,
    as with another log: sequences from before say nothing then about which changes are in the index.
    """

    default_code = "source.position-unavailable"

    def __init__(
        self, source_id: str, why: str, *, resumes_at: bytes | None = None, resumes_after: int | None = None
    ) -> None:
        self.source_id = source_id
        self.why = why.rstrip(".")
        self.resumes_at = check_position(resumes_at)
        self.resumes_after = None if resumes_after is None else check_u64("resumes_after", resumes_after)
        check_source_id(source_id)
        super().__init__(
            f"Source {source_id!r} cannot go on from its checkpoint: {self.why}.",
            about=f"source {source_id!r}",
            unchanged="the index and its checkpoints",
            next_step="bring the missing changes back, or start with the policy reset (compute everything anew) "
            "or skip (do without them, with the gap on record)",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.source_id, self.why, self.resumes_at, self.resumes_after)


def _rebuilt(source_id: str, why: str, resumes_at: bytes | None, resumes_after: int | None) -> PositionUnavailable:
    return PositionUnavailable(source_id, why, resumes_at=resumes_at, resumes_after=resumes_after)


class Recovery(Struct, frozen=True):
    """What is done about a source that cannot go on."""

    action: Literal["stop", "reset", "skip"]
    why: str
    gap: Gap | None = None
    """What was passed over, once that is on record."""


def decide_recovery(policy: Policy, failure: PositionUnavailable, *, resets: int = 0) -> Recovery:
    """Stop, empty the index and start over, or go on after a gap.

    `resets` is how often this start has emptied the index already: a source that fails again right after that would
    fail for ever, so the second time stops.
    """
    if policy not in get_args(Policy):
        raise refused("policy", f"{policy!r} is none of 'strict', 'reset' and 'skip'")
    if policy == "skip":
        return Recovery("skip", failure.why)
    if policy == "reset" and resets == 0:
        return Recovery("reset", failure.why)
    again = "the index was emptied for this once, and it happened again: " if resets else ""
    return Recovery("stop", again + failure.why)


def recover(index: Index, failure: PositionUnavailable, policy: Policy = "strict", *, resets: int = 0) -> Recovery:
    """Carry out what the policy says: raise the failure, empty the index, or record the gap and move the checkpoint.

    After `reset` every source begins at its beginning. After `skip` this one begins at its new checkpoint, without a
    position at wherever it can. If the failure does not say after which sequence it goes on, the source has no
    checkpoint any more and begins at its beginning: the old sequence would pass for proof that the index has the
    first changes of a new log. Durable on return.
    """
    decided = decide_recovery(policy, failure, resets=resets)
    if decided.action == "stop":
        raise failure
    if decided.action == "reset":
        index.reset()
        return decided
    gap = index.checkpoints.pass_over(failure.source_id, failure.resumes_after, failure.resumes_at, failure.why)
    return Recovery(decided.action, decided.why, gap)
