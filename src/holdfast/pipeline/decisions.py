"""What to do with the batch that Spark hands over. Pure."""

from __future__ import annotations

import msgspec

from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Corrupt


class NewEpoch(msgspec.Struct, frozen=True):
    """An epoch that was never decided: stage, capture, decide, commit."""


class ReplayedEpoch(msgspec.Struct, frozen=True):
    """An epoch that was decided before Spark could count it as done. Its frame is run once more for the state."""

    manifest: CheckpointManifest
    unfinished: tuple[str, ...]
    """Sinks that still owe their commit."""


def classify_batch(
    newest: CheckpointManifest | None, delivered: int, epoch: int, sinks: frozenset[str]
) -> NewEpoch | ReplayedEpoch:
    """Fresh or replay, from the newest checkpoint, the last epoch that was delivered, and the batch at hand.

    `Corrupt` if Spark is anywhere else than at that epoch or at the next one: going on would lose or repeat rows.
    """
    if epoch == delivered + 1:
        return NewEpoch()
    if newest is not None and epoch == delivered == newest.epoch:
        owing = [name for name, status in newest.sink_commit_statuses.items() if status != "Committed"]
        return ReplayedEpoch(newest, tuple(sorted(name for name in owing if name in sinks)))
    raise Corrupt(
        f"Spark runs epoch {epoch}, and the last one that was delivered is {delivered}.",
        code="epoch.out-of-order",
        about=f"epoch {epoch}",
        unchanged="every checkpoint and every sink",
        next_step="start the pipeline again: it recovers from the newest checkpoint",
    )
