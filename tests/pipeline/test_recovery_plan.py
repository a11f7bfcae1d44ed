"""Coming back, as a table: what is made of store and workdir, whatever is observed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recovery_states import COMMITTED, EMPTY, FAILED, PENDING, STORE, WANTED, checkpoint, plan, wanted, workdir

from holdfast.errors import Corrupt, HoldfastError
from holdfast.pipeline.recovery_plan import Observation, RecoveryPlan, WorkdirState, plan_recovery
from holdfast.sinks import SinkProgress

# Nothing there


def test_nothing_there() -> None:
    found = plan(None, EMPTY)
    assert found == RecoveryPlan(0, "begin", "there is none", None, 0)
    assert list(found.lines()) == [
        "The pipeline begins with epoch 1 of lineage 0.",
        "Begin with an empty workdir: there is none.",
    ]


@pytest.mark.parametrize("seen", [workdir(-1, -1), workdir(0, -1), workdir(0, -1, problem="metadata cannot be read")])
def test_a_start_that_never_decided_anything(seen: WorkdirState) -> None:
    found = plan(None, seen)
    assert found == RecoveryPlan(0, "begin", "no epoch was decided in the one that is there", None, 0)


def test_sinks_without_deliveries_are_fine_at_the_beginning() -> None:
    assert plan(None, EMPTY, lake=SinkProgress(), pg=SinkProgress(committed=0, lineage=0)).workdir == "begin"


# The workdir, held against epoch 6, batch 5

TREATED: list[tuple[str, WorkdirState, str, str, int | None]] = [
    ("intact, all done", workdir(5, 5), "keep", "it matches the checkpoint", None),
    ("intact, the next is planned", workdir(6, 5), "keep", "it matches the checkpoint", None),
    ("decided, not yet done", workdir(5, 4), "keep", "it matches the checkpoint", 5),
    ("gone", EMPTY, "rebuild", "it is gone", 5),
    ("behind by one", workdir(4, 4), "rebuild", "it is at batch 4, behind batch 5", 5),
    ("behind, planned", workdir(4, 3), "rebuild", "it is at batch 4, behind batch 5", 5),
    ("never begun", workdir(-1, -1), "rebuild", "it is at batch -1, behind batch 5", 5),
    ("damaged", workdir(5, 5, problem="offsets/5 is torn"), "rebuild", "offsets/5 is torn", 5),
    (
        "damaged, not yet done",
        workdir(5, 4, problem="x is not what was captured"),
        "rebuild",
        "x is not what was captured",
        5,
    ),
    ("offsets lost", workdir(4, 5), "rebuild", "it is at batch 4, behind batch 5", 5),
    ("commits lost", workdir(5, 3), "rebuild", "its logs have a gap: planned 5, done 3", 5),
    ("all commits lost", workdir(5, -1), "rebuild", "its logs have a gap: planned 5, done -1", 5),
    ("two planned", workdir(7, 5), "rebuild", "its logs have a gap: planned 7, done 5", 5),
    ("the decided one was never counted", workdir(6, 4), "rebuild", "its logs have a gap: planned 6, done 4", 5),
    ("ahead and damaged", workdir(9, 8, problem="offsets/9 is torn"), "rebuild", "offsets/9 is torn", 5),
]


@pytest.mark.parametrize(
    ("seen", "action", "why", "replayed"), [case[1:] for case in TREATED], ids=[case[0] for case in TREATED]
)
def test_the_workdir_is_kept_or_rebuilt_by_what_it_is(
    seen: WorkdirState, action: Any, why: str, replayed: int | None
) -> None:
    found = plan(checkpoint(), seen)
    assert found == RecoveryPlan(0, action, why, 20, 6, replayed=replayed)
    lines = list(found.lines())
    assert lines[0] == "Resume from checkpoint 20, epoch 6, lineage 0."
    assert lines[1].endswith(f": {why}.")
    assert ("Rebuild the workdir from checkpoint 20" in lines[1]) == (action == "rebuild")
    assert len(lines) == (2 if replayed is None else 3)
    if replayed is not None:
        assert lines[2].startswith("Spark runs batch 5 (epoch 6) once more")


def test_the_first_epoch_is_replayed() -> None:
    found = plan(checkpoint(1), workdir(0, -1))
    assert (found.workdir, found.replayed, found.delivered) == ("keep", 0, 1)
    assert plan(checkpoint(1), workdir(-1, -1)).workdir == "rebuild"


def test_the_lineage_goes_on() -> None:
    assert plan(checkpoint(lineage=3), workdir(5, 5)).lineage == 3


def test_skipped_checkpoints_are_shown() -> None:
    seen = Observation(STORE, checkpoint(), workdir(5, 5), [(22, "corrupt manifest: torn"), (21, "x is not there")])
    lines = list(plan_recovery(seen, WANTED).lines())
    assert lines[:2] == [
        "Checkpoint 22 is skipped: corrupt manifest: torn.",
        "Checkpoint 21 is skipped: x is not there.",
    ]


# A workdir that is ahead of the newest checkpoint that can be trusted


@pytest.mark.parametrize(("planned", "committed"), [(8, 8), (9, 8), (6, 6)])
def test_a_workdir_ahead_of_the_checkpoint_is_adopted_if_all_sinks_agree(planned: int, committed: int) -> None:
    both = {name: SinkProgress(committed + 1, 0) for name in ("lake", "pg")}
    found = plan(checkpoint(), workdir(planned, committed), **both)
    assert found == RecoveryPlan(0, "adopt", f"it is at batch {committed}", 20, committed + 1)
    lines = list(found.lines())
    assert lines[0] == f"Resume from checkpoint 20, epoch {committed + 1}, lineage 0."
    assert lines[1].startswith("Go on from the workdir, which is ahead of the newest checkpoint")


@pytest.mark.parametrize(("planned", "committed"), [(10, 8), (7, 8), (-1, 8)])
def test_a_workdir_that_is_ahead_with_a_gap_is_not_adopted(planned: int, committed: int) -> None:
    """Spark would not go on after `committed`, whatever the plan says."""
    try:
        found = plan(checkpoint(), workdir(planned, committed), lake=SinkProgress(), pg=SinkProgress())
    except HoldfastError:
        return
    assert found.workdir != "adopt"


def test_adopted_sinks_may_have_what_spark_has_done_and_planned() -> None:
    for planned, allowed in ((8, 9), (9, 10)):
        assert plan(checkpoint(), workdir(planned, 8), lake=SinkProgress(allowed, 0)).workdir == "adopt"
        with pytest.raises(Corrupt, match="'lake'"):
            plan(checkpoint(), workdir(planned, 8), lake=SinkProgress(allowed + 1, 0))


def test_operators_cannot_be_adopted() -> None:
    with pytest.raises(Corrupt) as refused:
        plan(checkpoint(), workdir(8, 8), wanted(operators=frozenset({"dedup", "count"})), lake=SinkProgress(9, 0))
    assert refused.value.code == "recovery.operators-lost"
    assert "checkpoint that can be trusted is 20, epoch 6" in refused.value.message
    assert "3 epochs further" in refused.value.message
    assert "count, dedup" in refused.value.message
    assert plan(checkpoint(), workdir(5, 5), wanted(operators=frozenset({"dedup"}))).workdir == "keep"


def test_what_is_ahead_and_damaged_does_not_repeat_what_sinks_have() -> None:
    with pytest.raises(Corrupt) as refused:
        plan(checkpoint(), workdir(9, 8, problem="torn"), pg=SinkProgress(9, 0))
    assert refused.value.code == "sink.ahead"


# Whatever is observed

STANDINGS = st.builds(SinkProgress, st.none() | st.integers(0, 9), st.none() | st.integers(0, 3))
STATUSES = st.sampled_from([PENDING, COMMITTED, FAILED])


@given(
    st.none() | st.tuples(st.integers(1, 8), st.integers(0, 2), STATUSES, STATUSES),
    st.tuples(st.integers(-1, 9), st.integers(-1, 9)),
    st.tuples(st.booleans(), st.none() | st.just("torn"), st.sampled_from(["shop", "other", None])),
    st.dictionaries(st.sampled_from(["lake", "pg"]), STANDINGS),
    st.sampled_from(["fail", "accept", "reset"]),
    st.sampled_from([77, 78]),
)
def test_a_plan_never_repeats_what_a_sink_would_skip(
    newest: tuple[int, int, Any, Any] | None,
    logs: tuple[int, int],
    look: tuple[bool, str | None, str | None],
    sinks: dict[str, SinkProgress],
    on_change: Any,
    pipeline_hash: int,
) -> None:
    known = None
    if newest:
        epoch, lineage, *statuses = newest
        known = checkpoint(
            epoch, lineage=lineage, sink_commit_statuses=dict(zip(("lake", "pg"), statuses, strict=True))
        )
    is_empty, problem, owner = look
    seen = EMPTY if is_empty else workdir(*logs, problem=problem, pipeline=owner)
    refused: HoldfastError | None = None
    try:
        found = plan(known, seen, wanted(on_change=on_change, pipeline_hash=pipeline_hash), **sinks)
    except HoldfastError as error:
        refused = error
    if refused is not None:
        assert refused.code != refused.default_code
        assert refused.about
        assert refused.next_step
        return
    assert all(line.endswith(".") for line in found.lines())
    assert is_empty or owner != "other"
    for standing in sinks.values():
        assert (standing.lineage or 0) <= found.lineage
        if found.lineage == (known.own.lineage if known else 0) and standing.committed is not None:
            is_planned = found.workdir in ("keep", "adopt") and seen.planned >= found.delivered
            assert standing.committed <= found.delivered + is_planned
    if known and found.checkpoint_id is not None:
        assert found.delivered >= known.epoch
        assert (found.replayed is not None) <= (found.delivered == known.epoch)


def test_an_epoch_that_one_sink_has_and_no_manifest_is_not_run_again_by_chance() -> None:
    """Its manifest was damaged after a crash between two commits: the other sink would get other rows."""
    seen, one, both = (
        workdir(6, 5),
        {"lake": SinkProgress(7, 0), "pg": SinkProgress(6, 0)},
        {"lake": SinkProgress(7, 0), "pg": SinkProgress(7, 0)},
    )
    by_chance = wanted(is_deterministic=False)
    with pytest.raises(Corrupt, match="other rows each time"):
        plan(checkpoint(6), seen, by_chance, **one)
    assert plan(checkpoint(6), seen, by_chance, **both).workdir == "keep"
    assert plan(checkpoint(6), seen, **one).workdir == "keep"


def test_nor_is_one_that_follows_what_the_workdir_is_ahead_with() -> None:
    seen, one, both = (
        workdir(8, 7),
        {"lake": SinkProgress(9, 0), "pg": SinkProgress(8, 0)},
        {"lake": SinkProgress(9, 0), "pg": SinkProgress(9, 0)},
    )
    by_chance = wanted(is_deterministic=False)
    with pytest.raises(Corrupt, match="'lake' has epoch 9 and others do not"):
        plan(checkpoint(6), seen, by_chance, **one)
    assert plan(checkpoint(6), seen, by_chance, **both).workdir == "adopt"
    assert plan(checkpoint(6), seen, **one).workdir == "adopt"
