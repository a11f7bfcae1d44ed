"""The walk back to the newest valid checkpoint, over a validator that is told what is valid."""

from __future__ import annotations

from holdfast.checkpoints.manifest import Issue
from holdfast.checkpoints.recovery_walk import walk_back
from holdfast.checkpoints.validate import ValidationResult
from holdfast.errors import Unavailable


class FakeValidator:
    def __init__(self, valid: set[int], failing: set[int]) -> None:
        self.valid, self.failing = valid, failing

    def validate(self, checkpoint_id: int) -> ValidationResult:
        if checkpoint_id in self.failing:
            raise Unavailable("503")
        fine = checkpoint_id in self.valid
        return ValidationResult(
            checkpoint_id, fine, [] if fine else [Issue("bad", True), Issue("odd"), Issue("worse", True)]
        )


def test_the_walk_skips_damaged_and_unreadable_checkpoints_and_says_why() -> None:
    ticks = iter([10.0, 12.5])
    tried: list[tuple[int, str | None]] = []
    report = walk_back(
        [1, 3, 9, 2], FakeValidator({1, 2}, {9}), clock=lambda: next(ticks), on_tried=lambda *seen: tried.append(seen)
    )
    assert (report.chosen_id, report.examined, report.elapsed, report.unreadable) == (2, 3, 2.5, [9])
    assert report.skipped == [(9, "could not be read: 503"), (3, "bad; worse")]
    assert [number for number, _ in tried] == [9, 3, 2]
