"""Delta tables as the sink makes them: partitioned, and with properties."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta_s3_place import S3Table
from deltalake import DeltaTable

from holdfast.errors import Invalid
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.sink import RowsRefused
from holdfast.testing.conformance.sinks import delivery
from servers.s3 import S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = dt.date(2026, 1, 2)
ODD = "a/b=c %20+*~ü'"
COLUMNS = "id bigint, p string, day date, n int, b boolean"
ROWS: list[tuple[Any, ...]] = [
    (1, ODD, DAY, 1, True),
    (2, None, None, None, None),
    (3, ODD, DAY, -5, False),
    (4, "", DAY, 1, True),
    (5, "..", DAY, 0, True),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def s3_table(s3a_bucket: str, s3_server: S3Server) -> S3Table:
    return S3Table(f"s3://{s3a_bucket}/lake", s3_server.endpoint)


def deliver(sink: DeltaSink, frame: DataFrame, epoch: int = 1) -> None:
    sink.prepare(frame.schema, delivery(0))
    sink.commit(sink.stage(frame, delivery(epoch)), delivery(epoch))


def stored(table: DeltaTable) -> list[tuple[Any, ...]]:
    columns = ["id", "p", "day", "n", "b"]
    return sorted(tuple(row[name] for name in columns) for row in table.to_pyarrow_table().to_pylist())


def check_partitioned(sink: DeltaSink, frame: DataFrame, opened: Any) -> None:
    deliver(sink, frame)
    deliver(sink, frame.where("false"), 2)
    table = opened()
    assert table.metadata().partition_columns == sink.partition_by
    # To Delta, an empty string that partitions is a null.
    assert stored(table) == [row if row[1] != "" else (4, None, *row[2:]) for row in ROWS]
    assert table.to_pyarrow_table(filters=[("p", "=", ODD)]).num_rows == 2
    assert table.to_pyarrow_table(filters=[("day", "=", DAY), ("n", "=", -5)]).num_rows == 1


@pytest.mark.parametrize("key", [None, "id"], ids=["append", "merge"])
def test_partitioned(spark: SparkSession, root: Path, key: str | None) -> None:
    sink = DeltaSink(root, key, partition_by=["p", "day", "n", "b"])
    check_partitioned(sink, spark.createDataFrame(ROWS, COLUMNS), lambda: DeltaTable(root))


@pytest.mark.s3
def test_partitioned_on_s3(spark: SparkSession, s3_table: S3Table) -> None:
    sink = DeltaSink(s3_table.address, partition_by=["p", "day", "n", "b"])
    check_partitioned(sink, spark.createDataFrame(ROWS, COLUMNS), s3_table.open)
    assert not [key for key in s3_table.data() if "%" in key or "+" in key]


@pytest.mark.parametrize(
    ("columns", "partition_by", "says"),
    [
        ("id bigint, at timestamp", "at", "'at' is timestamp, which cannot partition"),
        ("id bigint, x double", ["x"], "'x' is double, which cannot partition"),
        ("id bigint", "day", "no column 'day' to partition by"),
        ("id bigint", "id", "no column besides"),
    ],
)
def test_what_cannot_partition(spark: SparkSession, root: Path, columns: str, partition_by: Any, says: str) -> None:
    with pytest.raises(RowsRefused, match=says):
        DeltaSink(root, partition_by=partition_by).prepare(spark.createDataFrame([], columns).schema, delivery(0))
    assert not root.exists()


def test_table_that_is_partitioned_in_another_way(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    frame = spark.createDataFrame(ROWS, COLUMNS)
    deliver(DeltaSink(root, partition_by="day"), frame)
    deliver(DeltaSink(root), frame, 2)  # takes it as it is
    for wanted in (["n"], ["day", "n"]):
        with pytest.raises(
            Invalid, match=r"is partitioned by day, and partition_by says .* give partition_by=\['day'\]"
        ):
            DeltaSink(root, partition_by=wanted).prepare(frame.schema, delivery(0))
    deliver(DeltaSink(tmp_path / "plain"), frame)
    with pytest.raises(Invalid, match=r"is not partitioned, and partition_by says day.*give no partition_by"):
        DeltaSink(tmp_path / "plain", partition_by="day").stage(frame, delivery(1))
    assert len(stored(DeltaTable(root))) == 2 * len(ROWS)


def check_properties(sink: DeltaSink, frame: DataFrame, opened: Any) -> None:
    deliver(sink, frame)
    assert opened().metadata().configuration.items() >= PROPERTIES.items()
    assert opened().to_pyarrow_table().num_rows == 1


PROPERTIES = {"delta.appendOnly": "true", "owner": "sales"}


def test_properties(spark: SparkSession, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = spark.createDataFrame([(1,)], "id bigint")
    with caplog.at_level(logging.WARNING, "holdfast.sinks"):
        check_properties(DeltaSink(root, properties=PROPERTIES), frame, lambda: DeltaTable(root))
        assert caplog.records == []
        for _ in range(2):
            other = {"delta.appendOnly": "false", "owner": "sales", "delta.logRetentionDuration": "interval 9 days"}
            DeltaSink(root, properties=other).prepare(frame.schema, delivery(0))
    (record,) = caplog.records
    assert "delta.appendOnly is true and not false" in record.message
    assert "delta.logRetentionDuration is not set and not interval 9 days" in record.message
    assert DeltaTable(root).metadata().configuration == PROPERTIES


@pytest.mark.s3
def test_properties_on_s3(spark: SparkSession, s3_table: S3Table) -> None:
    sink = DeltaSink(s3_table.address, properties=PROPERTIES)
    check_properties(sink, spark.createDataFrame([(1,)], "id bigint"), s3_table.open)
    assert s3_table.open().metadata().configuration["delta.checkpointInterval"] == "10"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"properties": {"delta.appendOnly": True}}, "no text"),
        ({"properties": {"delta.appendOnly": "true"}, "key": "id"}, "forbids merging"),
        ({"properties": {"delta.enableDeletionVectors": "true"}}, "delta.enableDeletionVectors is set"),
        ({"properties": {"delta.columnMapping.mode": "name"}}, "mapped"),
        ({"partition_by": ["a", "a"]}, "each stored column once"),
        ({"partition_by": ["a"], "key": "id", "delete": "a"}, "each stored column once"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        DeltaSink("/x", **arguments)
    assert caught.value.code == "sink.delta-arguments"


def test_description_has_what_readers_see() -> None:
    plain = DeltaSink("/x").describe()
    assert DeltaSink("/x", properties={"owner": "me"}).describe() == plain
    assert DeltaSink("/x", partition_by="day").describe() == plain | {"partition_by": ["day"]}
