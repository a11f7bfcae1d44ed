"""Coming back to sinks: those that owe, those that are ahead, those that were set back."""

from __future__ import annotations

from typing import Any

import pytest
from recovery_states import COMMITTED, EMPTY, FAILED, PENDING, STORE, checkpoint, plan, wanted, workdir

from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Corrupt, Invalid
from holdfast.pipeline.recovery_plan import WorkdirState
from holdfast.sinks import SinkProgress


@pytest.mark.parametrize(
    ("statuses", "unfinished"),
    [
        ({"lake": COMMITTED, "pg": COMMITTED}, ()),
        ({"lake": PENDING, "pg": COMMITTED}, ("lake",)),
        ({"pg": PENDING, "lake": FAILED}, ("lake", "pg")),
    ],
)
@pytest.mark.parametrize("seen", [workdir(5, 4), EMPTY])
def test_unfinished_sinks(statuses: dict[str, Any], unfinished: tuple[str, ...], seen: WorkdirState) -> None:
    found = plan(checkpoint(sink_commit_statuses=statuses, sink_epochs={"lake": 5, "pg": 5}), seen)
    assert found.owed_sinks == unfinished
    said = [line for line in found.lines() if line.startswith("Finish the last epoch")]
    assert said == [f"Finish the last epoch in sink {name!r} from what was staged for it." for name in unfinished]


@pytest.mark.parametrize("on_change", ["accept", "reset"])
def test_a_sink_that_owes_cannot_be_dropped(on_change: str) -> None:
    newest = checkpoint(sink_names=["lake", "old", "pg"], sink_commit_statuses={"old": PENDING, "lake": COMMITTED})
    with pytest.raises(Invalid) as refused:
        plan(newest, workdir(5, 5), wanted(on_change=on_change))
    assert (refused.value.code, refused.value.about) == ("sink.owes-epoch", "sink 'old'")
    assert "epoch 6" in refused.value.message


@pytest.mark.parametrize(
    ("newest", "seen", "lineage", "allowed"),
    [
        (None, EMPTY, 0, 0),
        (None, workdir(0, -1), 0, 0),
        (checkpoint(), workdir(5, 5), 0, 6),
        (checkpoint(), workdir(5, 4), 0, 6),
        (checkpoint(), workdir(6, 5), 0, 7),  # the same offsets come under the same number again
        (checkpoint(), EMPTY, 0, 6),
        (checkpoint(), workdir(6, 5, problem="torn"), 0, 6),  # the plan for epoch 7 is lost with it
        (checkpoint(lineage=2), workdir(5, 5), 2, 6),
    ],
)
def test_sinks_may_not_be_ahead(
    newest: CheckpointManifest | None, seen: WorkdirState, lineage: int, allowed: int
) -> None:
    plan(newest, seen, pg=SinkProgress(allowed, lineage), lake=SinkProgress(is_known=False))
    with pytest.raises(Corrupt) as refused:
        plan(newest, seen, pg=SinkProgress(allowed + 1, lineage))
    assert (refused.value.code, refused.value.about) == ("sink.ahead", "sink 'pg'")
    assert f"epoch {allowed + 1}" in refused.value.message
    assert STORE in refused.value.message
    with pytest.raises(Corrupt) as refused:
        plan(newest, seen, pg=SinkProgress(None, lineage + 1))
    assert f"lineage {lineage + 1}" in refused.value.message
    assert f"at lineage {lineage}" in refused.value.message


@pytest.mark.parametrize(("standing", "knows"), [(SinkProgress(4, 0), "epoch 4 only"), (SinkProgress(), "no epoch")])
def test_a_sink_that_was_set_back_stops_the_start(standing: SinkProgress, knows: str) -> None:
    sinks = {"lake": standing, "pg": SinkProgress(6, 0)}
    with pytest.raises(Corrupt) as refused:
        plan(checkpoint(), workdir(5, 5), **sinks)
    assert refused.value.code == "sink.set-back"
    assert f"'lake' itself knows of {knows}, and epoch 6 was committed to it" in refused.value.message
    found = plan(checkpoint(), workdir(5, 5), wanted(on_change="accept"), **sinks)
    assert len(found.notes) == 1
    assert "is not delivered again" in found.notes[0]
    with pytest.raises(Corrupt, match=knows):
        plan(checkpoint(), workdir(5, 5), wanted(on_change="accept", accepts_loss=False), **sinks)


def test_a_sink_that_cannot_tell_is_believed() -> None:
    assert plan(checkpoint(), workdir(5, 5), lake=SinkProgress(is_known=False)).notes == ()


def test_a_workdir_that_is_ahead_of_the_sinks_is_not_adopted() -> None:
    """Store and sinks were restored from a copy together, and the workdir was forgotten: its epochs are nowhere."""
    at_six = {"lake": SinkProgress(6, 0), "pg": SinkProgress(6, 0)}
    assert plan(checkpoint(), workdir(8, 8), **at_six).workdir == "rebuild"
    assert plan(checkpoint(), workdir(8, 8), lake=SinkProgress(is_known=False)).workdir == "rebuild"
    with pytest.raises(Corrupt, match="'lake' has epoch 9"):
        plan(checkpoint(), workdir(8, 8), lake=SinkProgress(9, 0), pg=SinkProgress(6, 0))


def test_a_suspicion_rebuilds_only_where_nothing_is_lost_by_it() -> None:
    at_six, at_seven = ({"lake": SinkProgress(epoch, 0)} for epoch in (6, 7))
    assert plan(checkpoint(), workdir(6, 5, suspect_reason="it said so"), **at_six).workdir == "rebuild"
    assert plan(checkpoint(), workdir(6, 5, suspect_reason="it said so"), **at_seven).workdir == "keep"
