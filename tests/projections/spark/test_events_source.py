"""The events of a store as a source of Spark's: a batch as of one moment, a stream by position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringEndsWith,
    StringStartsWith,
)

from holdfast.errors import Invalid
from holdfast.projections import Append, NewEvent, ProjectionStore, open_projections
from holdfast.projections.spark.events import COLUMNS, PUSHES
from holdfast.projections.spark.events_filter import EventFilter, from_options, narrowed
from holdfast.projections.spark.events_source import EventsDataSource, PositionPartition, PushingReader, StreamPartition
from holdfast.spark import read_events
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/events.db"


@pytest.fixture
def store(url: str) -> Iterator[ProjectionStore]:
    with open_projections(url) as store:
        store.append_many([Append(f"order-{n % 5}" if n % 3 else f"cart-{n}", [_event(n)]) for n in range(40)])
        yield store


def _event(number: int) -> NewEvent:
    payload: Any = {"n": number} if number % 2 else b"\x00\xff%d" % number
    return NewEvent(f"type-{number % 4}", payload, number % 3, "request", None, 1_000 * number)


def test_a_batch_has_every_event_as_the_store_has_it(spark: SparkSession, store: ProjectionStore, url: str) -> None:
    frame = read_events(spark, url, partitions=3)
    assert frame.columns == list(COLUMNS)
    assert frame.rdd.getNumPartitions() == 3
    found = {row["position"]: row.asDict() for row in frame.collect()}
    assert len(found) == 40
    for event in store.read_all():
        row = found[event.position]
        assert {name: row[name] for name in COLUMNS} == {name: getattr(event, name) for name in COLUMNS}


def test_a_batch_is_of_one_moment_and_reads_what_is_asked_for(
    spark: SparkSession, store: ProjectionStore, url: str
) -> None:
    columns = "stream string, position bigint"
    frame = read_events(spark, url, columns=columns, prefix="cart-", from_position=5, events_per_partition=9)
    assert frame.columns == ["stream", "position"]
    expected = {(e.stream, e.position) for e in store.read_all() if e.stream[0] == "c" and e.position >= 5}
    assert {tuple(row) for row in frame.collect()} == expected
    store.append("cart-7", [NewEvent("late")] * 3)
    assert {tuple(row) for row in frame.collect()} == expected
    assert read_events(spark, url, columns=columns, from_position=42, until=99).count() == 2
    assert read_events(spark, url, from_position=99).count() == 0


def test_filters_on_position_and_stream_are_applied_before_reading(
    spark: SparkSession, store: ProjectionStore, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with configured(spark, {PUSHES: "true"}):
        frame = read_events(spark, url).where("stream = 'order-2' and position > 10 and type = 'type-1'")
        found = {row["position"] for row in frame.collect()}
        frame.explain()
    expected = {e.position for e in store.read_all() if (e.stream, e.type) == ("order-2", "type-1") and e.position > 10}
    assert found == expected != set()
    plan = capfd.readouterr().out
    assert "type-1" in plan
    assert "order-2" not in plan


def test_a_stream_goes_on_from_its_position(
    spark: SparkSession, store: ProjectionStore, url: str, tmp_path: Path
) -> None:
    def run() -> list[int]:
        frame = read_events(spark, url, streaming=True, max_events_per_trigger=15, partitions=2)
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    assert run() == [15, 15, 10]
    store.append("order-9", [NewEvent("more")] * 4)
    assert run() == [4]
    read = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row["position"] for row in read.select("position").collect()) == list(range(1, 45))


ALL = EventFilter("sqlite:///x")


@pytest.mark.parametrize(
    ("by", "left"),
    [
        (EqualTo(("position",), 7), EventFilter("sqlite:///x", 7, 7)),
        (GreaterThan(("position",), 7), EventFilter("sqlite:///x", 8)),
        (GreaterThanOrEqual(("position",), 7), EventFilter("sqlite:///x", 7)),
        (LessThan(("position",), 7), EventFilter("sqlite:///x", 1, 6)),
        (LessThanOrEqual(("position",), 7), EventFilter("sqlite:///x", 1, 7)),
        (IsNotNull(("position",)), ALL),
        (IsNotNull(("stream",)), ALL),
        (EqualTo(("stream",), "a"), EventFilter("sqlite:///x", streams=("a",))),
        (EqualTo(("stream",), ""), EventFilter("sqlite:///x", streams=())),
        (In(("stream",), ("b", "a")), EventFilter("sqlite:///x", streams=("a", "b"))),
        (StringStartsWith(("stream",), "a"), EventFilter("sqlite:///x", prefix="a")),
        (StringEndsWith(("stream",), "a"), None),
        (In(("position",), (1, 2)), None),
        (EqualTo(("position",), None), None),
        (IsNotNull(("type",)), None),
        (EqualTo(("type",), "a"), None),
        (EqualTo(("stream", "x"), "a"), None),
    ],
)
def test_what_a_filter_leaves(by: Filter, left: EventFilter | None) -> None:
    assert narrowed(ALL, by) == left


def test_filters_leave_what_all_of_them_leave() -> None:
    reader = PushingReader(EventFilter("sqlite:///x", 5, 50, "or"), ["position"])
    filters = [
        GreaterThan(("position",), 3),
        LessThan(("position",), 40),
        StringStartsWith(("stream",), "order-"),
        StringStartsWith(("stream",), "o"),
        In(("stream",), ("order-1", "order-2", "other")),
        In(("stream",), ("order-2", "order-3")),
        StringEndsWith(("stream",), "2"),
    ]
    assert list(reader.pushFilters(filters)) == filters[-1:]
    assert reader.filter == EventFilter("sqlite:///x", 5, 39, "order-", ("order-2",))
    assert list(reader.pushFilters([StringStartsWith(("stream",), "cart")])) == []
    assert reader.filter.streams == ()


def test_partitions_cover_every_position_once(store: ProjectionStore, url: str) -> None:
    for filter in (
        EventFilter(url, partitions=7),
        EventFilter(url, events_per_partition=13),
        EventFilter(url, partitions=99),
    ):
        parts = PushingReader(filter, ["position"]).partitions()
        covered = [n for part in parts if isinstance(part, PositionPartition) for n in range(part.first, part.last + 1)]
        assert covered == list(range(1, 41))
    (part,) = PushingReader(EventFilter(url, streams=("order-1", "none")), ["position"]).partitions()
    assert isinstance(part, StreamPartition)
    reader = PushingReader(EventFilter(url, 10, 30, streams=("order-1", "none")), ["position"])
    (part,) = reader.partitions()
    found: list[Any] = [n for batch in reader.read(part) for n in batch.column(0).to_pylist()]
    assert found == [e.position for e in store.read_stream("order-1") if 10 <= e.position <= 30] != []


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({}, "url"),
        ({"url": "memory://x"}, "memory://x"),
        ({"url": "sqlite:///x", "from": "0"}, "from"),
        ({"url": "sqlite:///x", "until": "later"}, "until"),
        ({"url": "sqlite:///x", "partitions": "-1"}, "partitions"),
        ({"url": "sqlite:///x", "events_per_partition": ""}, "events_per_partition"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], about: str) -> None:
    with pytest.raises(Invalid) as refused:
        from_options(options)
    assert refused.value.about == about


@pytest.mark.usefixtures("spark")
def test_columns_that_are_refused() -> None:
    from pyspark.sql.types import StructType

    source = EventsDataSource({"url": "sqlite:///x"})
    for columns in ("position string", "colour string", "payload string"):
        with pytest.raises(Invalid, match="have no column"):
            source.reader(StructType.fromDDL(columns))
