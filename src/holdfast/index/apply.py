"""One change of a source at a time: applied once, or the source stops there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from holdfast.errors import Invalid
from holdfast.index.arguments import check_u64
from holdfast.index.gap import Gap
from holdfast.index.index import Index

log = logging.getLogger("holdfast.sources")


class Applier:
    """Applies changes to an index, each in a session with its source's checkpoint.

    A change that fails is never passed over: the failure is raised, the checkpoint stays, and later changes of that
    source are refused until this one has succeeded or `give_up` has put its absence on record. The checkpoint stays
    behind it, so a new process meets the same change again.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._skipped: Counter[str] = Counter()
        self._failed: dict[str, int] = {}

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many changes of each source were in the index already."""
        return MappingProxyType(self._skipped)

    def apply(self, source_id: str, sequence: int, position: bytes | None, change: Callable[[Index], object]) -> bool:
        """Run `change` in a session that also moves the source's checkpoint; True if it did.

        A change with the checkpoint's sequence or a lower one is in the index already: it is counted and not run, and
        the first of each source is logged as a warning, since it may also mean that a source has begun to count anew.
        """
        sequence = check_u64("sequence", sequence)
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
        """Do without a change that cannot be applied: the gap is on record, and the source goes on after it.

        `Invalid` for a change that is in the index already: everything after it would be applied a second time.
        """
        sequence = check_u64("sequence", sequence)
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
                "%s: change %d of source %r is in the index already, which has it up to %d; "
                "it was skipped, and so will others be, without a further warning",
                self._index.address,
                sequence,
                source_id,
                mark,
            )

    def _check_no_session(self) -> None:
        if self._index.has_session:
            raise Invalid(
                f"{self._index.address}: each change has a session of its own, and one is open.",
                code="session.open",
                about=self._index.address,
                unchanged="the index and the session",
                next_step="commit or roll back first",
            )

    def _check_not_after_a_failure(self, source_id: str, sequence: int, mark: int) -> None:
        failed = self._failed.get(source_id)
        if failed is not None and mark < failed < sequence:  # after a lost reply it may be in all the same
            raise Invalid(
                f"Change {failed} of source {source_id!r} failed, so change {sequence} cannot be applied yet.",
                code="change.failed-before",
                about=f"source {source_id!r}",
                unchanged="the index and its checkpoints",
                next_step=f"apply change {failed} again, or give it up, which puts the gap on record",
            )
