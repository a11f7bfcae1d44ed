"""Changes of a source, one at a time: each is applied once, or the source stops there.

Also the recovery of a source that cannot resume from its checkpoint: `decide_recovery` decides, `recover` acts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

from msgspec import Struct

from holdfast.base.arguments import check_number, refused
from holdfast.errors import Invalid, NotFound
from holdfast.index.index import Index
from holdfast.index.records import Gap
from holdfast.index.source import Resume, Source
from holdfast.index.source_checkpoints import check_position, check_source_id

Policy = Literal["strict", "reset", "skip"]
log = logging.getLogger("holdfast.sources")


class Applier:
    """Applies changes to an index, each in a session with its source's checkpoint.

    A change that fails is never skipped: the failure is raised, the checkpoint stays, and later changes of that source
    are refused until this one has succeeded or `give_up` has recorded the gap. Because the checkpoint stays before the
    failed change, a new process gets the same change again.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._skipped: Counter[str] = Counter()
        self._failed: dict[str, int] = {}

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many changes of each source were skipped because they were in the index already."""
        return MappingProxyType(self._skipped)

    def resume(self, source_id: str) -> Resume:
        """From where a source continues: the position and the sequence of its checkpoint, read together."""
        found = self._index.checkpoints.read_checkpoint(source_id)
        return Resume() if found is None else Resume(found.source_position, found.sequence)

    def follow(self, source_id: str, source: Source, change: Callable[[Index, Any], object]) -> int:
        """Apply the changes of a source, from where it resumes, until it has no more. Returns how many were applied.

        `change` gets the index and the value of each change, within the session that advances the checkpoint. If this
        raises or the process dies, the next call continues with the first change that is not in the index.
        """
        resume = self.resume(source_id)
        applied = 0
        for found in source.changes(resume.position, resume.sequence):
            applied += self.apply(source_id, found.sequence, found.position, partial(_apply, change, found.value))
        return applied

    def apply(self, source_id: str, sequence: int, position: bytes | None, change: Callable[[Index], object]) -> bool:
        """Run `change` in a session that also advances the source's checkpoint. Returns True if it ran.

        A change with the checkpoint's sequence or a lower one is in the index already: it is counted as skipped and not
        run. The first one of each source is logged as a warning, since the source may have restarted its sequence.
        """
        sequence = check_number("sequence", sequence)
        self._check_no_session()
        before = self._index.checkpoints.read_checkpoint(source_id)
        if before is not None and sequence <= before.sequence:
            self._skip(source_id, sequence, before.sequence)
            return False
        self._check_not_after_a_failure(source_id, sequence, before.sequence if before else -1)
        try:
            with self._index.session():
                change(self._index)
                self._index.checkpoints.stage_checkpoint(source_id, sequence, position)
        except BaseException:
            self._failed[source_id] = sequence
            raise
        self._failed.pop(source_id, None)
        return True

    def give_up(self, source_id: str, sequence: int, position: bytes | None, why: str) -> Gap:
        """Skip a change that cannot be applied: record the gap and move the checkpoint after it, in one commit.

        `Invalid` for a change that is in the index already: the changes after it would be applied a second time.
        """
        sequence = check_number("sequence", sequence)
        self._check_no_session()
        before = self._index.checkpoints.read_checkpoint(source_id)
        if before is not None and sequence <= before.sequence:
            raise Invalid(
                f"Change {sequence} of source {source_id!r} cannot be given up: the index has the source up to "
                f"{before.sequence}.",
                code="change.applied",
                about=f"source {source_id!r}",
                unchanged="the index and its checkpoints",
                next_step=f"go on after {before.sequence}",
            )
        gap = self._index.checkpoints.pass_over(source_id, sequence, position, why)
        self._failed.pop(source_id, None)
        return gap

    def _skip(self, source_id: str, sequence: int, mark: int) -> None:
        self._skipped[source_id] += 1
        if self._skipped[source_id] == 1:
            log.warning(
                "%s: change %d of source %r is in the index already, which has the source up to %d; "
                "it was skipped, and others like it will be skipped without a warning",
                self._index.address,
                sequence,
                source_id,
                mark,
            )

    def _check_no_session(self) -> None:
        if self._index.has_session:
            raise Invalid(
                f"{self._index.address}: each change is applied in a session of its own, and another session is open.",
                code="session.open",
                about=self._index.address,
                unchanged="the index and the session",
                next_step="commit or roll back first",
            )

    def _check_not_after_a_failure(self, source_id: str, sequence: int, mark: int) -> None:
        failed = self._failed.get(source_id)
        # A failed change at or below the mark took effect after all: only the reply to its commit was lost.
        if failed is not None and mark < failed < sequence:
            raise Invalid(
                f"Change {failed} of source {source_id!r} failed, so change {sequence} cannot be applied yet.",
                code="change.failed-before",
                about=f"source {source_id!r}",
                unchanged="the index and its checkpoints",
                next_step=f"apply change {failed} again, or give it up, which puts the gap on record",
            )


def _apply(change: Callable[[Index, Any], object], value: Any, index: Index) -> None:
    change(index, value)


class PositionUnavailable(NotFound):
    """A source no longer has the changes after its checkpoint: its log was truncated or replaced.

    Raised by sources. `resumes_at` is the position where the source could continue instead, if it knows one, and
    `resumes_after` the sequence of the last change before that position. Without `resumes_after` the sequences of
    future changes are unknown, as with another log: then the old sequences do not tell which changes are in the index.
    """

    default_code = "source.position-unavailable"

    def __init__(
        self, source_id: str, why: str, *, resumes_at: bytes | None = None, resumes_after: int | None = None
    ) -> None:
        self.source_id = source_id
        self.why = why.rstrip(".")
        self.resumes_at = check_position(resumes_at)
        self.resumes_after = None if resumes_after is None else check_number("resumes_after", resumes_after)
        check_source_id(source_id)
        super().__init__(
            f"Source {source_id!r} cannot resume from its checkpoint: {self.why}.",
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
    """The decision about a source that cannot resume from its checkpoint."""

    action: Literal["stop", "reset", "skip"]
    why: str
    gap: Gap | None = None
    """The skipped changes, once the gap is recorded."""


def decide_recovery(policy: Policy, failure: PositionUnavailable, *, resets: int = 0) -> Recovery:
    """Decide: stop, empty the index and start over, or continue after a gap.

    `resets` is how often this start has emptied the index already. A source that fails again right after a reset would
    fail for ever, so the second time the decision is to stop.
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
    """Apply the policy: raise the failure, empty the index, or record the gap and move the checkpoint.

    After `reset` every source starts from its beginning. After `skip` this source starts from its new checkpoint; if
    that has no position, from wherever the source can. If the failure has no `resumes_after`, the checkpoint is removed
    and the source starts from its beginning: with the old sequence, the first changes of a new log would be taken for
    changes that are in the index already. Durable on return.
    """
    decided = decide_recovery(policy, failure, resets=resets)
    if decided.action == "stop":
        raise failure
    if decided.action == "reset":
        index.reset()
        return decided
    gap = index.checkpoints.pass_over(failure.source_id, failure.resumes_after, failure.resumes_at, failure.why)
    return Recovery(decided.action, decided.why, gap)
