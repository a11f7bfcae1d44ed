"""Coming back to what is another pipeline's, or with a pipeline that has changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from recovery_states import COMMITTED, EMPTY, PENDING, STORE, WANTED, checkpoint, plan, wanted, workdir

from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Corrupt, Invalid
from holdfast.pipeline.query.description import Description, SourceDescription
from holdfast.pipeline.recovery_plan import Observation, RecoveryPlan, WorkdirState, check_start, plan_recovery
from holdfast.sinks import SinkProgress

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

FROM_NOW_ON, NO_MORE = "it gets the epochs from now on", "it gets no more epochs"
CHANGES: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    (
        {"pipeline_hash": 78},
        [
            (
                "the query or a sink's settings differ",
                "in what is not on record; the checkpoint was written with Spark 4.3.0",
            )
        ],
    ),
    (
        {"sources": frozenset({"clicks"})},
        [
            (
                "source 'orders' is gone, and source 'clicks' has its place",
                "it goes on from the offsets of the one before it",
            )
        ],
    ),
    ({"sinks": frozenset({"lake"}), "pipeline_hash": 78}, [("sink 'pg' is gone", NO_MORE)]),
    (
        {"sinks": frozenset({"lake", "pg", "b", "a"})},
        [("sink 'a' is new", FROM_NOW_ON), ("sink 'b' is new", FROM_NOW_ON)],
    ),
]
"""Checkpoints without a description: only names and a hash are compared."""
MORE_SOURCES = wanted(sources=frozenset({"orders", "clicks"}))


def with_consequences(changes: list[tuple[str, str]]) -> str:
    return "; ".join(f"{what} ({follows})" for what, follows in changes)


@pytest.mark.parametrize(("fields", "changes"), CHANGES)
def test_a_changed_pipeline_is_refused(fields: dict[str, Any], changes: list[tuple[str, str]]) -> None:
    with pytest.raises(Invalid) as refused:
        plan(checkpoint(), workdir(5, 5), wanted(**fields))
    assert refused.value.code == "pipeline.changed"
    said = with_consequences(changes)
    assert refused.value.message == f"The pipeline has changed since checkpoint 20: {said}."
    assert "on_change='accept'" in (refused.value.next_step or "")
    assert "on_change='reset'" in (refused.value.next_step or "")


@pytest.mark.parametrize(("fields", "changes"), CHANGES)
def test_a_changed_pipeline_is_accepted(fields: dict[str, Any], changes: list[tuple[str, str]]) -> None:
    found = plan(checkpoint(), workdir(5, 4), wanted(on_change="accept", **fields))
    said = with_consequences(changes)
    assert found == RecoveryPlan(
        0,
        "keep",
        "it matches the checkpoint",
        20,
        6,
        replayed=5,
        notes=(f"The pipeline has changed, and on_change is 'accept': {said}.",),
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [(fields, "; ".join(what for what, _ in changes)) for fields, changes in CHANGES]
    + [({"sources": frozenset({"orders", "clicks"})}, "source 'clicks' is new")],
)
def test_a_changed_pipeline_is_reset(fields: dict[str, Any], said: str) -> None:
    found = plan(checkpoint(lineage=2), workdir(5, 5), wanted(on_change="reset", **fields))
    assert msgspec.structs.replace(found, notes=()) == RecoveryPlan(
        3, "begin", f"{said}, and on_change is 'reset'", None, 0
    )
    assert "Take on_change='reset' out now." in found.notes[0]
    assert list(found.lines())[1:] == [
        "The pipeline begins with epoch 1 of lineage 3.",
        f"Begin with an empty workdir: {said}, and on_change is 'reset'.",
    ]


@pytest.mark.parametrize("on_change", ["fail", "accept"])
def test_another_number_of_sources_needs_a_reset(on_change: Any) -> None:
    more = msgspec.structs.replace(MORE_SOURCES, on_change=on_change)
    for start in (plan_recovery, check_start):
        with pytest.raises(Invalid, match="Spark's log has offsets of 1 source, the query has 2") as refused:
            start(Observation(STORE, checkpoint(), workdir(5, 5)), more)
        assert refused.value.code == "pipeline.needs-reset"
        assert "on_change='accept' cannot go on from there" in (refused.value.next_step or "")


def test_what_starts_over_may_be_anything() -> None:
    """A query whose checkpoints are given up does not go on from their state."""
    anew = msgspec.structs.replace(MORE_SOURCES, on_change="accept", anew_after=20)
    assert plan(checkpoint(lineage=2), workdir(5, 5), anew).lineage == 3
    assert check_start(Observation(STORE, checkpoint(lineage=2), workdir(5, 5)), anew) == 3


def described(**fields: Any) -> Description:
    source = SourceDescription("orders", "rate", {"rowsPerSecond": "5"}, "struct<value:bigint>")
    given: dict[str, Any] = {
        "spark": "4.3.0",
        "sources": [source],
        "plan": [],
        "plan_fingerprint": "f",
        "state": [],
        "output_mode": "append",
        "columns": "struct<value:bigint>",
        "sinks": {"lake": {}, "pg": {}},
    }
    return Description(**(given | fields))


def test_a_description_decides_where_there_is_one() -> None:
    """Whatever the hashes are: they are of another release."""
    runtime = {"pipeline": "shop", "query_id": "q-1", "description": described().recorded({})}
    newest = checkpoint(runtime=runtime, pipeline_hash=1)
    faster = SourceDescription("orders", "rate", {"rowsPerSecond": "9"}, "struct<value:bigint>")
    for on_change in ("fail", "accept", "reset"):
        asked = wanted(on_change=on_change, description=described(sources=[faster]))
        found = plan(newest, workdir(5, 5), asked)
        assert (found.workdir, found.lineage) == ("keep", 0)
        assert found.notes == ("Source 'orders': rowsPerSecond was 5 and is 9: not a part of what the query is.",)
    with pytest.raises(Invalid, match="the output mode was append and is update"):
        plan(newest, workdir(5, 5), wanted(description=described(output_mode="update")))


@pytest.mark.parametrize("damaged", [{"description": {"spark": 4}}, {"description": "x"}, {"description": None}])
def test_a_description_that_cannot_be_read_leaves_the_hash(damaged: dict[str, Any]) -> None:
    newest = checkpoint(runtime={"pipeline": "shop", "query_id": "q-1"} | damaged)
    assert plan(newest, workdir(5, 5), wanted(description=described())).workdir == "keep"
    with pytest.raises(Invalid, match="differ"):
        plan(newest, workdir(5, 5), wanted(description=described(), pipeline_hash=78))


def test_the_hash_of_an_earlier_release() -> None:
    assert plan(checkpoint(), workdir(5, 5), wanted(pipeline_hash=78, plan_hash=77)).workdir == "keep"


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
    assert any("'lake'" in line for line in found.lines())


@pytest.mark.parametrize("on_change", ["fail", "accept", "reset"])
def test_a_pipeline_that_has_not_changed_just_resumes(on_change: Any) -> None:
    assert plan(checkpoint(), workdir(5, 5), wanted(on_change=on_change)) == plan(checkpoint(), workdir(5, 5))


def test_no_hash_on_record_is_a_change() -> None:
    with pytest.raises(Invalid, match="differ"):
        plan(checkpoint(pipeline_hash=None), workdir(5, 5))


def test_sources_that_changed_places_are_refused_even_if_changes_are_accepted() -> None:
    newest = checkpoint(runtime={"pipeline": "shop", "query_id": "q-1", "sources": ["orders", "returns"]})
    accepting = wanted(on_change="accept", source_order=("returns", "orders"))
    with pytest.raises(Invalid, match="each would go on from the offsets") as refused:
        plan(newest, workdir(5, 5), accepting)
    assert refused.value.code == "pipeline.source-order"
    kept = wanted(on_change="accept", source_order=("orders", "returns"))
    assert plan(newest, workdir(5, 5), kept).workdir == "keep"
