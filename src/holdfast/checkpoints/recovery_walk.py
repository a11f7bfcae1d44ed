"""The recovery walk: from the newest checkpoint back over damaged ones to the first valid one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.checkpoints.validate import Validator
from holdfast.errors import Corrupt, HoldfastError, Unavailable


class RecoveryReport(msgspec.Struct, frozen=True):
    """The checkpoint that the walk chose, and the newer ones that it skipped, each with the reason.

    If `chosen_id` is None and `examined` is 0, the store is empty. If `chosen_id` is None and checkpoints were skipped,
    none of them is valid, and that is not a fresh start.
    """

    chosen_id: int | None
    skipped: list[tuple[int, str]]
    examined: int
    elapsed: float
    """Seconds."""
    unreadable: list[int] = []
    """Checkpoints skipped because the object store failed, not because they are damaged: trying again may help."""

    def require(self) -> int | None:
        """The chosen id; None only if the store is empty.

        For a pipeline that is about to start. `Corrupt` if there are checkpoints and none is valid (`Unavailable` if
        some could not be read), because starting from nothing would repeat everything.
        """
        if self.chosen_id is not None or not self.skipped:
            return self.chosen_id
        newest, why = self.skipped[0]
        kind = Unavailable if self.unreadable else Corrupt
        raise kind(
            f"None of the {len(self.skipped)} checkpoints can be trusted; the newest, {newest}: {why}.",
            code="recovery.nothing-left",
            about=f"checkpoint {newest}",
            unchanged="the store",
            next_step="holdfast verify URL --deep, and restore it from a copy; to begin anew, use another address",
        )


def walk_back(
    ids: Sequence[int],
    validator: Validator,
    *,
    clock: Callable[[], float] = time.monotonic,
    on_tried: Callable[[int, str | None], None] | None = None,
) -> RecoveryReport:
    """Try `ids` from the newest down and stop at the first valid one. A bad checkpoint never ends the walk."""
    began = clock()
    skipped: list[tuple[int, str]] = []
    unreadable: list[int] = []
    chosen = None
    examined = 0
    for checkpoint_id in sorted(ids, reverse=True):
        examined += 1
        try:
            result = validator.validate(checkpoint_id)
            why = None if result.valid else result.reason
        except HoldfastError as error:
            why = f"could not be read: {error.message}"
            unreadable.append(checkpoint_id)
        if on_tried:
            on_tried(checkpoint_id, why)
        if why is None:
            chosen = checkpoint_id
            break
        skipped.append((checkpoint_id, why))
    return RecoveryReport(chosen, skipped, examined, clock() - began, unreadable)
