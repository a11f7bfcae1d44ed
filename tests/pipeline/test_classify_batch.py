"""A new epoch, a replayed one, or a refusal: the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SinkCommitStatus
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Corrupt
from holdfast.pipeline.epoch import NewEpoch, ReplayedEpoch, classify_batch
from holdfast.testing.conformance.checkpoints.subject import manifest

PENDING, COMMITTED, FAILED = SinkCommitStatus.pending(), SinkCommitStatus.committed(), SinkCommitStatus.failed("full")


def at(epoch: int, **statuses: object) -> CheckpointManifest:
    return manifest(40 + epoch, epoch=epoch, sink_commit_statuses=statuses)


@pytest.mark.parametrize(
    ("newest", "delivered", "epoch"),
    [
        (None, 0, 1),
        (at(5), 5, 6),
        (at(5, lake=PENDING), 5, 6),
        (at(5), 9, 10),  # the workdir is ahead of what can be trusted
        (None, 3, 4),
    ],
)
def test_a_batch_after_the_newest_checkpoint_is_a_new_epoch(
    newest: CheckpointManifest | None, delivered: int, epoch: int
) -> None:
    assert classify_batch(newest, delivered, epoch) == NewEpoch()


@pytest.mark.parametrize("newest", [at(5), at(5, lake=COMMITTED, pg=COMMITTED), at(5, pg=PENDING, lake=FAILED)])
def test_the_last_delivered_batch_is_a_replay(newest: CheckpointManifest) -> None:
    assert classify_batch(newest, 5, 5) == ReplayedEpoch(newest)


@pytest.mark.parametrize(
    ("newest", "delivered", "epoch"),
    [
        (None, 0, 2),
        (None, 0, 0),
        (None, 3, 3),  # no checkpoint says what was delivered in it
        (at(5), 5, 4),
        (at(5), 5, 7),
        (at(5), 9, 9),
        (at(5), 9, 5),
        (at(5), 4, 6),
    ],
)
def test_anywhere_else_is_refused(newest: CheckpointManifest | None, delivered: int, epoch: int) -> None:
    with pytest.raises(Corrupt) as refused:
        classify_batch(newest, delivered, epoch)
    error = refused.value
    assert (error.code, error.about) == ("epoch.out-of-order", f"epoch {epoch}")
    assert f"epoch {epoch}" in error.message
    assert f"is {delivered}" in error.message
    assert error.unchanged
    assert error.next_step


@given(st.none() | st.integers(1, 9), st.integers(0, 9), st.integers(0, 11))
def test_no_epoch_is_passed_over_or_repeated(newest: int | None, delivered: int, epoch: int) -> None:
    """Fresh only right after the last one; replay only of the last one, and only if a checkpoint knows it."""
    known = at(newest, lake=PENDING) if newest else None
    try:
        decision = classify_batch(known, delivered, epoch)
    except Corrupt:
        assert epoch != delivered + 1
        assert epoch != delivered or newest != delivered
        return
    assert epoch == (delivered + 1 if isinstance(decision, NewEpoch) else delivered)
    assert isinstance(decision, NewEpoch) or newest == epoch
