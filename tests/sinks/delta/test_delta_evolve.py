"""Columns that are added to a Delta table, in the same log entry as the first epoch that has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta_s3_place import S3Table
from deltalake import DeltaTable, Field
from sink_places import DiskRequests, staged_in

from holdfast.errors import Invalid
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.sink import RowsRefused, SinkProgress
from holdfast.testing.conformance.sinks import delivery
from servers.s3 import S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDE = "id bigint, name string, at timestamp, tags array<string>, gone boolean"
Opened = Callable[[], DeltaTable]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


def deliver(sink: DeltaSink, frame: DataFrame, epoch: int = 1) -> None:
    sink.prepare(frame.schema, delivery(0))
    descriptor = json.loads(json.dumps(sink.stage(frame, delivery(epoch))))
    sink.commit(descriptor, delivery(epoch))
    sink.commit(descriptor, delivery(epoch, generation=2))


def rows(opened: Opened) -> list[dict[str, Any]]:
    return sorted(opened().to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def check_columns_are_added(spark: SparkSession, sink: DeltaSink, opened: Opened) -> None:
    narrow = spark.createDataFrame([(1, "one", False)], "id bigint, name string, gone boolean")
    wide = spark.createDataFrame([(2, "two", None, ["x"], False)], WIDE)
    deliver(sink, narrow if sink.delete else narrow.drop("gone"))
    frame = wide if sink.delete else wide.drop("gone")
    sink.prepare(frame.schema, delivery(0))
    assert opened().to_pyarrow_table().schema.names == ["id", "name"]
    deliver(sink, frame, 2)
    table = opened()
    assert table.version() == 2
    assert table.transaction_version("holdfast/orders/out/0") == 2
    assert rows(opened) == [
        {"id": 1, "name": "one", "at": None, "tags": None},
        {"id": 2, "name": "two", "at": None, "tags": ["x"]},
    ]
    assert all(field.nullable and not field.metadata for field in table.schema().fields)
    deliver(sink, frame.selectExpr("id + 1 as id", *frame.columns[1:]), 3)
    assert [row["tags"] for row in rows(opened)] == [None, ["x"], ["x"]]
    assert sink.recover(delivery(3), None) == SinkProgress(committed=3, lineage=0)


@pytest.mark.parametrize("partition_by", [None, "name"], ids=["plain", "partitioned"])
@pytest.mark.parametrize("key", [None, "id"], ids=["append", "merge"])
def test_columns_are_added(spark: SparkSession, root: Path, key: str | None, partition_by: str | None) -> None:
    delete = "gone" if key else None
    sink = DeltaSink(root, key, delete=delete, evolve="add-columns", partition_by=partition_by)
    if partition_by is None:
        check_columns_are_added(spark, sink, lambda: DeltaTable(root))
        assert staged_in(root / "_holdfast_staging") == []
        return
    odd = "a/b %20"
    deliver(
        sink, spark.createDataFrame([(1, odd, False)], "id bigint, name string, gone boolean").drop("gone" * (not key))
    )
    frame = spark.createDataFrame(
        [(2, odd, 5, False), (3, None, 6, False)], "id bigint, name string, n int, gone boolean"
    )
    deliver(sink, frame.drop("gone" * (not key)), 2)
    assert [(row["id"], row["name"], row["n"]) for row in rows(lambda: DeltaTable(root))] == [
        (1, odd, None),
        (2, odd, 5),
        (3, None, 6),
    ]


@pytest.mark.s3
@pytest.mark.parametrize("key", [None, pytest.param("id", marks=pytest.mark.soak)], ids=["append", "merge"])
def test_columns_are_added_on_s3(spark: SparkSession, s3a_bucket: str, s3_server: S3Server, key: str | None) -> None:
    table = S3Table(f"s3://{s3a_bucket}/lake", s3_server.endpoint)
    sink = DeltaSink(table.address, key, evolve="add-columns")
    check_columns_are_added(spark, sink, table.open)
    assert table.staged() == []


@pytest.mark.parametrize("key", [None, "id"], ids=["append", "merge"])
def test_epoch_without_rows_adds_them_as_well(spark: SparkSession, root: Path, key: str | None) -> None:
    sink = DeltaSink(root, key, evolve="add-columns")
    deliver(sink, spark.createDataFrame([(1,)], "id bigint"))
    deliver(sink, spark.createDataFrame([], "id bigint, more string"), 2)
    assert rows(lambda: DeltaTable(root)) == [{"id": 1, "more": None}]
    assert DeltaTable(root).version() == 2
    assert sink.recover(delivery(2), None).committed == 2


@pytest.mark.parametrize("empty", [True, False], ids=["without rows", "with rows"])
def test_column_that_somebody_else_adds_meanwhile(spark: SparkSession, root: Path, empty: bool) -> None:
    sink = DeltaSink(root, evolve="add-columns")
    deliver(sink, spark.createDataFrame([(1,)], "id bigint"))
    frame = spark.createDataFrame([(2, "x")][empty:], "id bigint, more string")
    same = sink.stage(frame, delivery(2))
    other = sink.stage(frame.selectExpr("id", "more as other"), delivery(3))
    DeltaTable(root).alter.add_columns([Field("more", "string"), Field("other", "integer")])
    sink.commit(same, delivery(2))
    assert DeltaTable(root).to_pyarrow_table().num_rows == 2 - empty
    with pytest.raises(Invalid, match="'other' is string here and integer in the table"):
        sink.commit(other, delivery(3))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("id bigint", "column 'name' is missing"),
        ("id bigint, title string", "column 'name' is missing"),
        ("id int, name string", "'id' is integer here and long in the table"),
        ("id bigint, name string, NAME string", "'NAME' differs from it only in case"),
        ("id bigint, name string, more variant", "no type for"),
    ],
)
def test_anything_else_is_refused(spark: SparkSession, root: Path, columns: str, says: str) -> None:
    sink = DeltaSink(root, evolve="add-columns")
    deliver(sink, spark.createDataFrame([(1, "one")], "id bigint, name string"))
    with pytest.raises(RowsRefused, match=says):
        sink.prepare(schema_of(spark, columns), delivery(0))


def schema_of(spark: SparkSession, columns: str) -> Any:
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(columns)


def test_column_that_needs_a_feature_of_the_table(spark: SparkSession, root: Path) -> None:
    """With delta-rs 1.6 a merge adds it without the feature, and the table cannot be read any more."""
    deliver(DeltaSink(root), spark.createDataFrame([(1,)], "id bigint"))
    frame = spark.createDataFrame([(2, None)], "id bigint, at timestamp_ntz")
    merging = DeltaSink(root, "id", evolve="add-columns")
    for column in ("at", "array(at) as at"):
        with pytest.raises(RowsRefused, match=r"a merge cannot add.*alter\.add_columns"):
            merging.stage(frame.selectExpr("id", column), delivery(2))
    deliver(DeltaSink(root, evolve="add-columns"), frame, 2)
    more = frame.selectExpr("id + 1 as id", "at", "at as later")
    deliver(merging, more, 3)
    assert [row["id"] for row in rows(lambda: DeltaTable(root))] == [1, 2, 3]


def test_without_it_they_are_refused_with_a_hint(spark: SparkSession, root: Path) -> None:
    deliver(DeltaSink(root), spark.createDataFrame([(1,)], "id bigint"))
    with pytest.raises(RowsRefused, match=r"no column 'more'.*evolve='add-columns'"):
        DeltaSink(root).stage(spark.createDataFrame([], "id bigint, more string"), delivery(2))
    with pytest.raises(Invalid, match="is not known"):
        DeltaSink(root, evolve="everything")  # type: ignore[arg-type]


def test_rewritten_files_are_synced(spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(root, evolve="add-columns")
    deliver(sink, spark.createDataFrame([(1,)], "id bigint"))
    descriptor = sink.stage(spark.createDataFrame([(2, "x")], "id bigint, more string"), delivery(2))
    disk = DiskRequests(monkeypatch)
    sink.commit(descriptor, delivery(2))
    (written,) = root.glob("*.parquet")
    assert disk.synced >= {str(written), str(root / "_delta_log" / f"{2:020}.json")}
