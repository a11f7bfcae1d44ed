"""Which source the watermark of a query belongs to, by the operators of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.pipeline.query.plan import describe_query
from holdfast.pipeline.query.plan_reader import read_watermarks, watermark_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Node:
    """An operator, as Spark's plans have it."""

    def __init__(self, kind: str, *children: Node) -> None:
        self.kind, self.below = kind, children

    def getClass(self) -> Node:  # noqa: N802
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return self.kind

    def isStreaming(self) -> bool:  # noqa: N802
        return self.kind == "Stream" or any(child.isStreaming() for child in self.below)

    def children(self) -> Node:
        return self

    def size(self) -> int:
        return len(self.below)

    def apply(self, place: int) -> Node:
        return self.below[place]


def stream() -> Node:
    return Node("Stream")


def table() -> Node:
    return Node("Table")


def marked(*children: Node) -> Node:
    return Node("EventTimeWatermark", Node("Project", *children))


def join(*children: Node) -> Node:
    return Node("Join", *children)


@pytest.mark.parametrize(
    ("plan", "watermarks", "source"),
    [
        (stream(), [], None),
        (marked(stream()), [[0]], 0),
        (marked(marked(stream())), [[0], [0]], 0),
        (join(stream(), stream()), [], None),
        (join(marked(stream()), stream()), [[0]], 0),
        (join(stream(), marked(stream())), [[1]], 1),
        (join(marked(stream()), marked(stream())), [[0], [1]], None),
        (marked(join(stream(), stream())), [[0, 1]], None),
        (marked(join(marked(stream()), stream())), [[0], [0, 1]], None),
        (join(join(stream(), stream()), join(marked(stream()), stream())), [[2]], 2),
        (join(table(), join(stream(), marked(stream()))), [[1]], 1),
        (join(marked(table()), marked(stream())), [[0]], 0),
        (marked(join(table(), stream())), [[0]], 0),
        (join(marked(table()), stream()), [], None),
    ],
)
def test_which_sources_a_watermark_is_made_of(plan: Node, watermarks: list[list[int]], source: int | None) -> None:
    assert read_watermarks(plan) == watermarks
    assert watermark_source(watermarks) == source


def test_in_plans_of_spark(spark: SparkSession) -> None:
    def events() -> DataFrame:
        return spark.readStream.format("rate").load()

    def late(frame: DataFrame) -> DataFrame:
        return frame.withWatermark("timestamp", "1 minute")

    def of(frame: Any) -> int | None:
        return describe_query(frame, {}).watermark_source

    static = spark.range(1).selectExpr("id as value", "current_timestamp() as timestamp")
    assert of(events()) is None
    assert of(late(events())) == 0
    assert of(late(events()).groupBy("timestamp").count()) == 0
    assert of(events().union(late(events()))) == 1
    assert of(late(events()).union(late(events()))) is None
    assert of(late(events().union(events()))) is None
    assert of(events().join(late(events()), "value").join(events(), "value")) == 1
    assert of(events().join(late(static), "value")) is None
    assert of(late(static).join(late(events()), "value")) == 0
