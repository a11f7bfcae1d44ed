"""Two descriptions compared: every difference in words, with what follows from it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.pipeline.query.change import QueryChange
from holdfast.pipeline.query.compare import compare
from holdfast.pipeline.query.description import (
    Description,
    PlanNode,
    SourceDescription,
    StatefulOperator,
    recorded_description,
)

COLUMNS = "struct<shop:string,at:timestamp>"
KAFKA = SourceDescription("orders", "kafka", {"subscribe": "orders", "kafka.bootstrap.servers": "a:1"}, COLUMNS)
FILES = SourceDescription("refunds", "json", {"path": "/refunds"}, COLUMNS)
SUM = PlanNode("Aggregate", "f1", ["shop"], ["sum(amount)"], True, "Aggregate [shop], [sum(amount)]")
FILTER = PlanNode("Filter", "f2", text="Filter (amount > 0)")
STATE = StatefulOperator("aggregation", keys=["string"], values=["sum bigint"])
BEFORE = Description(
    spark="4.3.0",
    sources=[KAFKA, FILES],
    plan=[SUM, FILTER, PlanNode("Source", "f3")],
    plan_fingerprint="whole",
    state=[STATE],
    output_mode="update",
    columns="struct<shop:string,total:bigint>",
    sinks={"lake": {"kind": "delta", "path": "/lake"}},
    settings={"spark.sql.shuffle.partitions": "2"},
)


def now(**fields: Any) -> Description:
    return msgspec.structs.replace(BEFORE, **fields)


def kafka(**options: str) -> Description:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return now(sources=[msgspec.structs.replace(KAFKA, options=KAFKA.options | named), FILES])


def source(**fields: Any) -> Description:
    return now(sources=[msgspec.structs.replace(KAFKA, **fields), FILES])


def aggregated(state: dict[str, Any] | None = None, **node: Any) -> Description:
    changed = msgspec.structs.replace(SUM, fingerprint="f9", **node)
    return now(
        state=[msgspec.structs.replace(STATE, **(state or {}))], plan=[changed, FILTER, PlanNode("Source", "f3")]
    )


def planned(*nodes: PlanNode) -> Description:
    return now(plan=[SUM, *nodes, PlanNode("Source", "f3")], plan_fingerprint="other")


OTHER_FILTER = PlanNode("Filter", "f7", text="Filter (amount > 1)")
CASES: list[tuple[str, Description, list[tuple[str, str]]]] = [
    ("nothing", now(), []),
    # sources
    (
        "brokers and limits",
        kafka(kafka__bootstrap__servers="b:1", maxOffsetsPerTrigger="5"),
        [
            ("source 'orders': kafka.bootstrap.servers was a:1 and is b:1", "harmless"),
            ("source 'orders': maxOffsetsPerTrigger was not set and is 5", "harmless"),
        ],
    ),
    ("topic", kafka(subscribe="returns"), [("source 'orders': subscribe was orders and is returns", "accept")]),
    ("headers", kafka(includeHeaders="true"), [("source 'orders': includeHeaders was not set and is true", "accept")]),
    (
        "isolation",
        kafka(kafka__isolation__level="read_committed"),
        [("source 'orders': kafka.isolation.level was not set and is read_committed", "accept")],
    ),
    ("case", source(options={"SUBSCRIBE": "orders", "Kafka.Bootstrap.Servers": "a:1"}), []),
    (
        "option gone",
        source(options={"kafka.bootstrap.servers": "a:1"}),
        [("source 'orders': subscribe was orders and is not set any more", "accept")],
    ),
    (
        "columns",
        source(columns="struct<shop:int,city:string>"),
        [
            (
                "source 'orders' has a new column city string, no column at any more, shop as int, which was string",
                "accept",
            )
        ],
    ),
    (
        "nested columns",
        source(columns="struct<at:timestamp,shop:string>"),
        [("source 'orders' has the same columns in another order", "accept")],
    ),
    ("connector", source(connector="rate"), [("source 'orders' was read as kafka and is read as rate", "reset")]),
    (
        "format of files",
        now(sources=[KAFKA, msgspec.structs.replace(FILES, connector="parquet")]),
        [("source 'refunds' was read as json and is read as parquet", "accept")],
    ),
    (
        "path",
        now(sources=[KAFKA, msgspec.structs.replace(FILES, options={"path": "/elsewhere"})]),
        [("source 'refunds': path was /refunds and is /elsewhere", "reset")],
    ),
    (
        "path above",
        now(sources=[KAFKA, msgspec.structs.replace(FILES, options={"path": "/{refunds,returns}"})]),
        [("source 'refunds': path was /refunds and is /{refunds,returns}", "accept")],
    ),
    (
        "another name",
        source(name="sales"),
        [("source 'orders' is gone, and source 'sales' has its place", "accept")],
    ),
    (
        "one more",
        now(sources=[KAFKA, FILES, msgspec.structs.replace(FILES, name="c")]),
        [("source 'c' is new", "reset")],
    ),
    ("one less", now(sources=[KAFKA]), [("source 'refunds' is gone", "reset")]),
    (
        "order",
        now(sources=[FILES, KAFKA]),
        [("the sources were orders, refunds in this order, and are refunds, orders now", "reset")],
    ),
    (
        "order of what they read",
        now(sources=[msgspec.structs.replace(FILES, name="orders"), msgspec.structs.replace(KAFKA, name="refunds")]),
        [
            (
                "the sources were kafka subscribe=orders, json path=/refunds in this order, "
                "and are json path=/refunds, kafka subscribe=orders now",
                "reset",
            )
        ],
    ),
    # state
    (
        "aggregate added",
        aggregated({"values": ["sum bigint", "count bigint"]}, functions=["sum(amount)", "count(1)"]),
        [("the aggregation has count(1) in addition", "reset")],
    ),
    (
        "aggregate replaced",
        aggregated({"values": ["max bigint"]}, functions=["max(amount)"]),
        [("the aggregation has max(amount) in addition; the aggregation has no sum(amount) any more", "reset")],
    ),
    (
        "argument of an aggregate",
        aggregated(functions=["sum(cents)"], text="Aggregate [shop], [sum(cents)]"),
        [("Aggregate [shop], [sum(cents)] is not as it was", "accept")],
    ),
    (
        "type of an aggregate",
        aggregated({"values": ["sum double"]}),
        [("the aggregation kept sum bigint and would keep sum double", "reset")],
    ),
    ("key", aggregated(keys=["city"]), [("the aggregation was by shop and is by city", "reset")]),
    (
        "type of a key",
        aggregated({"keys": ["int"]}),
        [("the keys of the aggregation had the types string and have int", "reset")],
    ),
    (
        "operator gone",
        now(state=[], plan=[FILTER, PlanNode("Source", "f3")]),
        [("an aggregation is gone", "reset")],
    ),
    (
        "operator added",
        now(state=[StatefulOperator("limit"), STATE]),
        [("a limit is new", "reset")],
    ),
    # the plan
    ("filter changed", planned(OTHER_FILTER), [("Filter (amount > 1) is not as it was", "accept")]),
    ("filter added", planned(FILTER, OTHER_FILTER), [("Filter (amount > 1) is new", "accept")]),
    ("filter gone", planned(), [("a Filter is gone", "accept")]),
    (
        "only whose column it is",
        now(plan_fingerprint="other"),
        [("an expression means another column of the same name", "accept")],
    ),
    # the rest
    ("mode", now(output_mode="complete"), [("the output mode was update and is complete", "accept")]),
    (
        "output",
        now(columns="struct<shop:string,total:decimal(10,2)>"),
        [("the sinks get total as decimal(10,2), which was bigint", "accept")],
    ),
    ("sink added", now(sinks=BEFORE.sinks | {"pg": {}}), [("sink 'pg' is new", "accept")]),
    ("sink gone", now(sinks={}), [("sink 'lake' is gone", "accept")]),
    (
        "sink moved",
        now(sinks={"lake": {"kind": "delta", "path": "/sea"}}),
        [("sink 'lake': path was /lake and is /sea", "accept")],
    ),
    ("table", now(tables=["rates"]), [("reference table 'rates' is new", "accept")]),
    ("operator of the user's", now(operators=["seen"]), [("operator 'seen' is new", "accept")]),
    (
        "settings",
        now(settings={"spark.sql.shuffle.partitions": "4"}),
        [("this session has spark.sql.shuffle.partitions=4", "harmless")],
    ),
    ("settings without state", now(settings={}), []),
]


@pytest.mark.parametrize(("after", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_difference_is_named_with_its_consequence(after: Description, expected: list[tuple[str, str]]) -> None:
    found = compare(BEFORE, after)
    assert [(one.what, one.consequence) for one in found] == expected
    assert all(one.follows for one in found)
    assert QueryChange(found).asks == any(consequence != "harmless" for _, consequence in expected)


@pytest.mark.parametrize(("after", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_hash_is_of_the_same_things(after: Description, expected: list[tuple[str, str]]) -> None:
    """It changes with everything that is asked about, and with nothing harmless."""
    asks = any(consequence != "harmless" for _, consequence in expected)
    follows_the_plan = msgspec.structs.replace(after, plan_fingerprint=str([node.identity for node in after.plan]))
    before = msgspec.structs.replace(BEFORE, plan_fingerprint=str([node.identity for node in BEFORE.plan]))
    if after.plan_fingerprint == "other" and after.plan == BEFORE.plan:
        follows_the_plan = after
    assert (follows_the_plan.identity_hash() != before.identity_hash()) == asks


def test_a_hash_of_a_description_never_changes() -> None:
    """A hash in a manifest outlives the release that wrote it."""
    assert f"{BEFORE.identity_hash():016x}" == "f145b13eb48860ff"


def test_between_two_versions_of_spark_the_text_is_not_compared() -> None:
    older = msgspec.structs.replace(BEFORE, spark="4.0.0")
    printed_otherwise = aggregated(functions=["sum(`amount`)"])
    found = compare(older, msgspec.structs.replace(printed_otherwise, plan_fingerprint="other"))
    assert [(one.what, one.consequence) for one in found] == [("Spark was 4.0.0 and is 4.3.0", "harmless")]
    found = compare(older, aggregated({"values": ["sum double"]}))
    assert [one.consequence for one in found] == ["accept", "harmless"]
    for changed in (aggregated({"keys": ["int"]}), aggregated(keys=["city"]), now(state=[])):
        assert QueryChange(compare(older, changed)).blockers


def test_a_description_comes_back_from_a_manifest() -> None:
    document = msgspec.json.decode(
        msgspec.json.encode(BEFORE.recorded({"spark.sql.shuffle.partitions": "7", "x": "1"}))
    )
    found = recorded_description({"description": document | {"of a newer release": 1}})
    assert found is not None
    assert found.settings == {"spark.sql.shuffle.partitions": "7"}
    assert [node.text for node in found.plan] == ["", "", ""]
    assert compare(found, now(settings={})) == []
    assert found.identity_hash() == BEFORE.identity_hash()


def test_operators_in_another_order() -> None:
    limit = StatefulOperator("limit")
    (found,) = compare(now(state=[STATE, limit]), now(state=[limit, STATE]))
    assert found.what == "the stateful operators were aggregation, limit and are limit, aggregation"
    assert found.consequence == "reset"


def test_aggregates_in_another_order() -> None:
    """The state looks the same, and each would go on from the sum of the other."""
    two = {"values": ["sum bigint", "sum bigint"]}
    before = aggregated(two, functions=["sum(a)", "sum(b)"])
    (found,) = compare(before, aggregated(two, functions=["sum(b)", "sum(a)"]))
    assert found.what == "the aggregation computed sum(a), sum(b) and computes sum(b), sum(a)"
    assert found.consequence == "reset"


def test_aggregates_in_another_order_are_told_between_two_versions_of_spark_too() -> None:
    two = {"values": ["min bigint", "max bigint"]}
    older = msgspec.structs.replace(aggregated(two, functions=["min(a)", "max(a)"]), spark="4.0.0")
    assert QueryChange(compare(older, aggregated(two, functions=["max(a)", "min(a)"]))).blockers


def test_a_change_in_sentences() -> None:
    change = QueryChange(compare(BEFORE, now(sinks={}, sources=[KAFKA])))
    assert str(change) == (
        "source 'refunds' is gone (Spark's log has offsets of 2 sources, the query has 1); "
        "sink 'lake' is gone (it gets no more epochs)"
    )
    assert change.what == "source 'refunds' is gone; sink 'lake' is gone"
    assert [one.what for one in change.blockers] == ["source 'refunds' is gone"]
    harmless = QueryChange(compare(BEFORE, kafka(maxOffsetsPerTrigger="5")))
    assert harmless.notes == [
        "Source 'orders': maxOffsetsPerTrigger was not set and is 5: not a part of what the query is."
    ]
