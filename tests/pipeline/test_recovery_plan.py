"""Coming back, as a table: every state that store, workdir and sinks can be in, and what is made of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SinkCommitStatus
from holdfast.checkpoints.manifest import CheckpointManifest, HoldfastSection
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.pipeline.recovery_plan import (
    Observation,
    PipelineSpec,
    RecoveryPlan,
    WorkdirState,
    check_start,
    plan_recovery,
)
from holdfast.sinks import SinkProgress
from holdfast.testing.conformance.checkpoints.subject import manifest

PENDING, COMMITTED, FAILED = SinkCommitStatus.pending(), SinkCommitStatus.committed(), SinkCommitStatus.failed("full")
STORE = "s3://bucket/shop"
WANTED = PipelineSpec("shop", 77, frozenset({"orders"}), frozenset({"lake", "pg"}))
EMPTY = WorkdirState("/data/work")


def checkpoint(epoch: int = 6, *, lineage: int = 0, runtime: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Checkpoint 20 of epoch 6, batch 5, both sinks committed, unless told otherwise."""
    given: dict[str, Any] = {
        "wal_position": epoch - 1,
        "source_names": ["orders"],
        "sink_names": ["lake", "pg"],
        "sink_commit_statuses": {"lake": COMMITTED, "pg": COMMITTED},
        "sink_epochs": {"lake": epoch, "pg": epoch},
        "pipeline_hash": 77,
        "holdfast": HoldfastSection(
            lineage=lineage,
            runtime={"pipeline": "shop", "query_id": "q-1", "spark": "4.3.0"} if runtime is None else runtime,
        ),
    }
    return manifest(20, epoch=epoch, **(given | fields))


def workdir(planned: int, committed: int, **fields: Any) -> WorkdirState:
    given: dict[str, Any] = {"is_empty": False, "pipeline": "shop", "query_id": "q-1"}
    return WorkdirState("/data/work", planned=planned, committed=committed, **(given | fields))


def plan(
    newest: CheckpointManifest | None, seen: WorkdirState, wanted: PipelineSpec = WANTED, **sinks: SinkProgress
) -> RecoveryPlan:
    return plan_recovery(Observation(STORE, newest, seen, [], sinks), wanted)


def wanted(**fields: Any) -> PipelineSpec:
    given = {name: getattr(WANTED, name) for name in WANTED.__struct_fields__}
    return PipelineSpec(**(given | fields))


# Nothing there


def test_nothing_there() -> None:
    found = plan(None, EMPTY)
    assert found == RecoveryPlan(0, "begin", "there is none", None, 0)
    assert list(found.words()) == [
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
def test_workdir(seen: WorkdirState, action: Any, why: str, replayed: int | None) -> None:
    found = plan(checkpoint(), seen)
    assert found == RecoveryPlan(0, action, why, 20, 6, replayed=replayed)
    lines = list(found.words())
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
    lines = list(plan_recovery(seen, WANTED).words())
    assert lines[:2] == [
        "Checkpoint 22 is skipped: corrupt manifest: torn.",
        "Checkpoint 21 is skipped: x is not there.",
    ]


# A workdir that is ahead of the newest checkpoint that can be trusted


@pytest.mark.parametrize(("planned", "committed"), [(8, 8), (9, 8), (6, 6)])
def test_adopted(planned: int, committed: int) -> None:
    both = {name: SinkProgress(committed + 1, 0) for name in ("lake", "pg")}
    found = plan(checkpoint(), workdir(planned, committed), **both)
    assert found == RecoveryPlan(0, "adopt", f"it is at batch {committed}", 20, committed + 1)
    lines = list(found.words())
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


# Sinks


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
    said = [line for line in found.words() if line.startswith("Finish the last epoch")]
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


# Whose it is


@pytest.mark.parametrize(
    ("runtime", "said"),
    [({"pipeline": "other"}, "belong to pipeline 'other', this is 'shop'"), ({}, "not written by a pipeline")],
)
def test_a_store_of_somebody_elses(runtime: dict[str, Any], said: str) -> None:
    for on_change in ("fail", "accept", "reset"):
        with pytest.raises(Invalid, match=said) as refused:
            plan(checkpoint(runtime=runtime), EMPTY, wanted(on_change=on_change))
        assert (refused.value.code, refused.value.about) == ("store.other-pipeline", STORE)


THEIRS: list[tuple[str, CheckpointManifest | None, WorkdirState]] = [
    ("marked by another", checkpoint(), workdir(5, 5, pipeline="other", query_id="q-2")),
    ("marked by another, empty store", None, workdir(5, 5, pipeline="other", query_id="q-2")),
    ("another query's", checkpoint(), workdir(5, 5, pipeline=None, query_id="q-2")),
    ("a query of Spark's without us", None, workdir(5, 5, pipeline=None)),
    ("somebody's files", checkpoint(), workdir(-1, -1, pipeline=None, query_id=None, looks_like_spark=False)),
    ("somebody's files, empty store", None, workdir(-1, -1, pipeline=None, query_id=None, looks_like_spark=False)),
    ("remains that nobody knows", None, workdir(-1, -1, pipeline=None, query_id=None)),
    ("marked by another, with a query that is known", checkpoint(), workdir(5, 5, pipeline="other")),
    (
        "marked by one of our name with another store",
        checkpoint(),
        workdir(5, 5, store="s3://bucket/other", query_id="q-2"),
    ),
    (
        "somebody's files, and no query on record",
        checkpoint(runtime={"pipeline": "shop"}),
        workdir(-1, -1, pipeline=None, query_id=None, looks_like_spark=False),
    ),
]


@pytest.mark.parametrize(("newest", "seen"), [case[1:] for case in THEIRS], ids=[case[0] for case in THEIRS])
def test_a_directory_of_somebody_elses(newest: CheckpointManifest | None, seen: WorkdirState) -> None:
    for on_change in ("fail", "accept", "reset"):
        with pytest.raises(Invalid) as refused:
            plan(newest, seen, wanted(on_change=on_change, pipeline_hash=78))
        assert (refused.value.code, refused.value.about) == ("workdir.other-pipeline", "/data/work")
        assert "another workdir" in (refused.value.next_step or "")


@pytest.mark.parametrize(
    "seen",
    [
        workdir(5, 5, query_id="q-9", problem="metadata is not what was captured"),  # marked as ours
        workdir(5, 5, store=STORE),
        workdir(5, 5, pipeline=None),  # the mark is lost, the query is known
        workdir(-1, -1, pipeline=None, query_id=None),  # what is left of one
    ],
)
def test_a_directory_of_ours(seen: WorkdirState) -> None:
    assert plan(checkpoint(), seen).workdir in ("keep", "rebuild")


def test_a_store_that_was_lost() -> None:
    with pytest.raises(Corrupt) as refused:
        plan(None, workdir(4, 4))
    assert refused.value.code == "store.lost"
    assert "has 5 epochs behind it" in refused.value.message
    assert STORE in refused.value.message
    assert "restore the store from a copy" in (refused.value.next_step or "")


# A pipeline that has changed

CHANGES = [
    ({"pipeline_hash": 78}, "the query or a sink's settings differ (the checkpoint was written with Spark 4.3.0)"),
    ({"sources": frozenset({"orders", "clicks"})}, "source 'clicks' is new"),
    ({"sources": frozenset({"clicks"})}, "source 'clicks' is new; source 'orders' is gone"),
    ({"sinks": frozenset({"lake"}), "pipeline_hash": 78}, "sink 'pg' is gone"),
    ({"sinks": frozenset({"lake", "pg", "b", "a"})}, "sink 'a' is new; sink 'b' is new"),
]


@pytest.mark.parametrize(("fields", "said"), CHANGES)
def test_a_changed_pipeline_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as refused:
        plan(checkpoint(), workdir(5, 5), wanted(**fields))
    assert refused.value.code == "pipeline.changed"
    assert refused.value.message == f"The pipeline has changed since checkpoint 20: {said}."
    assert "on_change='accept'" in (refused.value.next_step or "")
    assert "on_change='reset'" in (refused.value.next_step or "")


@pytest.mark.parametrize(("fields", "said"), CHANGES)
def test_a_changed_pipeline_is_accepted(fields: dict[str, Any], said: str) -> None:
    found = plan(checkpoint(), workdir(5, 4), wanted(on_change="accept", **fields))
    assert found == RecoveryPlan(
        0,
        "keep",
        "it matches the checkpoint",
        20,
        6,
        replayed=5,
        notes=(f"The pipeline has changed ({said}), and on_change is 'accept'.",),
    )


@pytest.mark.parametrize(("fields", "said"), CHANGES)
def test_a_changed_pipeline_is_reset(fields: dict[str, Any], said: str) -> None:
    found = plan(checkpoint(lineage=2), workdir(5, 5), wanted(on_change="reset", **fields))
    assert msgspec.structs.replace(found, notes=()) == RecoveryPlan(
        3, "begin", f"{said}, and on_change is 'reset'", None, 0
    )
    assert "Take on_change='reset' out now." in found.notes[0]
    assert list(found.words())[1:] == [
        "The pipeline begins with epoch 1 of lineage 3.",
        f"Begin with an empty workdir: {said}, and on_change is 'reset'.",
    ]


def test_before_the_claim_only_what_does_not_move_is_asked() -> None:
    """A driver at work may decide an epoch between two looks: its workdir then seems to be ahead of the store."""
    ahead = Observation(STORE, checkpoint(lineage=2), workdir(9, 9), [(7, "torn")])
    with pytest.raises(Corrupt):
        plan_recovery(ahead, wanted(operators=frozenset({"seen"})))
    assert check_start(ahead, wanted(operators=frozenset({"seen"}))) == 2
    assert check_start(ahead, wanted(pipeline_hash=78, on_change="reset")) == 3
    assert check_start(Observation(STORE, None, workdir(9, 9)), WANTED) == 0
    for refused in (wanted(pipeline="other"), wanted(pipeline_hash=78)):
        with pytest.raises(Invalid):
            check_start(ahead, refused)


def test_a_reset_is_beyond_every_lineage_that_sinks_know() -> None:
    changed = wanted(on_change="reset", pipeline_hash=78)
    assert plan(checkpoint(lineage=2), workdir(5, 5), changed, lake=SinkProgress(9, 7), pg=SinkProgress()).lineage == 8


def test_a_reset_finishes_what_was_decided() -> None:
    newest = checkpoint(sink_commit_statuses={"lake": PENDING, "pg": COMMITTED})
    found = plan(newest, workdir(5, 4), wanted(on_change="reset", pipeline_hash=78))
    assert found.owed_sinks == ("lake",)
    assert any("'lake'" in line for line in found.words())


@pytest.mark.parametrize("on_change", ["fail", "accept", "reset"])
def test_a_pipeline_that_has_not_changed_just_resumes(on_change: Any) -> None:
    assert plan(checkpoint(), workdir(5, 5), wanted(on_change=on_change)) == plan(checkpoint(), workdir(5, 5))


def test_no_hash_on_record_is_a_change() -> None:
    with pytest.raises(Invalid, match="differ"):
        plan(checkpoint(pipeline_hash=None), workdir(5, 5))


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
    assert all(line.endswith(".") for line in found.words())
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


def test_sources_that_changed_places_are_refused_even_if_changes_are_accepted() -> None:
    newest = checkpoint(runtime={"pipeline": "shop", "query_id": "q-1", "sources": ["orders", "returns"]})
    accepting = wanted(on_change="accept", source_order=("returns", "orders"))
    with pytest.raises(Invalid, match="each would go on from the offsets") as refused:
        plan(newest, workdir(5, 5), accepting)
    assert refused.value.code == "pipeline.source-order"
    kept = wanted(on_change="accept", source_order=("orders", "returns"))
    assert plan(newest, workdir(5, 5), kept).workdir == "keep"
