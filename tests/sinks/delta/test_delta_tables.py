"""Delta tables as they come: types, partitions, rules, keys. Whatever cannot be kept is refused before a decision."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from sink_places import everything_below, staged_in

from holdfast.errors import Invalid
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.sink import RowsRefused
from holdfast.testing.conformance.sinks import delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UTC = dt.UTC
TYPES = {
    "k": "bigint",
    "byte": "tinyint",
    "short": "smallint",
    "int": "int",
    "float": "float",
    "double": "double",
    "flag": "boolean",
    "text": "string",
    "raw": "binary",
    "day": "date",
    "moment": "timestamp",
    "wall": "timestamp_ntz",
    "small": "decimal(9,2)",
    "wide": "decimal(38,10)",
    "list": "array<string>",
    "pairs": "map<string,bigint>",
    "nested": "struct<a:int,b:struct<c:timestamp,d:array<decimal(5,1)>>>",
    "Strange Name": "string",
    "dot.ted": "int",
}
MOMENT = dt.datetime(2026, 3, 29, 1, 59, 59, 123457, tzinfo=UTC)
FULL: dict[str, Any] = {
    "k": 1,
    "byte": -128,
    "short": 32767,
    "int": -(2**31),
    "float": 1.5,
    "double": -0.1,
    "flag": True,
    "text": "Grüße 'quoted' \"x\"",
    "raw": b"\x00\xff",
    "day": dt.date(1582, 10, 4),
    "moment": MOMENT,
    "wall": dt.datetime(1900, 1, 1, 0, 0, 0, 1),
    "small": Decimal("-1234567.89"),
    "wide": Decimal("1234567890123456789012345678.0123456789"),
    "list": ["a", None],
    "pairs": [("x", 1), ("y", None)],
    "nested": {"a": 1, "b": {"c": MOMENT, "d": [Decimal("1.5"), None]}},
    "Strange Name": "s",
    "dot.ted": 3,
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL) | {"k": 2}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


def create(root: Path, *fields: dict[str, Any], **options: Any) -> DeltaTable:
    return DeltaTable.create(root, Schema.from_json(json.dumps({"type": "struct", "fields": fields})), **options)


def field(name: str, kind: str = "long", *, nullable: bool = True, **metadata: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def deliver(sink: DeltaSink, frame: DataFrame, epoch: int = 1) -> None:
    to = delivery(epoch)
    sink.prepare(frame.schema, delivery(0))
    sink.commit(sink.stage(frame, to), to)


def read(root: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(root).to_pyarrow_table().to_pylist(), key=str)


@pytest.mark.parametrize("key", [None, "k"], ids=["append", "merge"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_types_come_back_as_they_were(spark: SparkSession, root: Path, key: str | None, zone: str) -> None:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in TYPES.items())
    rows = [row | {"pairs": row["pairs"] and dict(row["pairs"])} for row in (FULL, EMPTY)]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame([tuple(row[name] for name in TYPES) for row in rows], columns)
        deliver(DeltaSink(root, key), frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = sorted(DeltaTable(root).to_pyarrow_table().to_pylist(), key=lambda row: row["k"])
    assert found == [FULL, EMPTY]
    stored = DeltaTable(root).to_pyarrow_table().schema
    assert stored.field("moment").type == pa.timestamp("us", "UTC")
    assert stored.field("wall").type == pa.timestamp("us")
    files = list(root.glob("holdfast/**/*.parquet")) + list(root.glob("*.parquet"))
    assert {pq.read_schema(file).field("moment").type for file in files} == {pa.timestamp("us", "UTC")}


def test_bounds_in_the_log_let_readers_pass_over_files_and_never_rows(spark: SparkSession, root: Path) -> None:
    columns = "n bigint, day date, at timestamp, text string"
    day = dt.date(2026, 1, 1)
    for epoch in (1, 2, 3):
        at = dt.datetime(2026, 1, epoch, 12, 0, 0, 999999)
        rows = [(10 * epoch, day.replace(day=epoch), at, "x"), (None, None, None, None)]
        deliver(DeltaSink(root), spark.createDataFrame(rows, columns), epoch)
    actions = pa.table(DeltaTable(root).get_add_actions(flatten=True)).to_pylist()
    assert {(one["min.n"], one["max.n"]) for one in actions if one["min.n"]} == {(10, 10), (20, 20), (30, 30)}
    assert sum(one["num_records"] for one in actions) == 6
    assert sum(one["null_count.n"] for one in actions) == 3
    entry = (root / "_delta_log" / f"{1:020}.json").read_text()
    bounds = [json.loads(json.loads(line)["add"]["stats"]) for line in entry.splitlines() if '"add"' in line]
    assert [(one["minValues"]["at"], one["maxValues"]["at"]) for one in bounds if "minValues" in one] == [
        ("2026-01-01T12:00:00.999Z", "2026-01-01T12:00:01.000Z")
    ]
    data = DeltaTable(root).to_pyarrow_dataset()
    last = dt.datetime(2026, 1, 3, 12, 0, 0, 999999, tzinfo=UTC)
    assert data.to_table(filter=ds.field("n") == 20).num_rows == 1
    assert data.to_table(filter=ds.field("day") >= day.replace(day=2)).num_rows == 2
    assert data.to_table(filter=ds.field("at") >= pa.scalar(last, pa.timestamp("us", "UTC"))).num_rows == 1
    assert data.to_table(filter=ds.field("n").is_null()).num_rows == 3


# Partitions


def test_partitioned_table(spark: SparkSession, root: Path) -> None:
    columns = [field("id"), field("p", "string"), field("d", "date"), field("n", "integer")]
    create(root, *columns, partition_by=["p", "d", "n"])
    day, odd = dt.date(2026, 1, 2), "a/b=c %20ü"
    rows = [(1, odd, day, 1), (2, None, None, None), (3, odd, day, -5), (4, "", day, 1), (5, "'", day, 0)]
    frame = spark.createDataFrame(rows, "id bigint, p string, d date, n int")
    deliver(DeltaSink(root), frame)
    deliver(DeltaSink(root), frame.where("false"), 2)
    found = sorted(tuple(row.values()) for row in DeltaTable(root).to_pyarrow_table().to_pylist())
    # To Delta, an empty string that partitions is a null.
    assert found == [row if row[1] != "" else (4, None, day, 1) for row in rows]
    assert DeltaTable(root).to_pyarrow_table(filters=[("p", "=", odd)]).num_rows == 2
    assert not [path for path in everything_below(root / "holdfast") if "=" in path or "%" in path]


def test_partitioned_table_merged_into(spark: SparkSession, root: Path) -> None:
    create(root, field("id"), field("p", "timestamp"), partition_by=["p"])
    for epoch, year in ((1, 2025), (2, 2026)):
        frame = spark.createDataFrame([(1, dt.datetime(year, 1, 1))], "id bigint, p timestamp")
        deliver(DeltaSink(root, "id"), frame, epoch)
    assert read(root) == [{"id": 1, "p": dt.datetime(2026, 1, 1, tzinfo=UTC)}]


def test_partitioned_by_what_cannot_be_written(spark: SparkSession, root: Path) -> None:
    create(root, field("id"), field("at", "timestamp"), partition_by=["at"])
    with pytest.raises(Invalid, match="partitioned by 'at', which is timestamp"):
        DeltaSink(root).prepare(spark.createDataFrame([], "id bigint, at timestamp").schema, delivery(0))


# Schemas


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("id int, name string", "'id' is integer here and long in the table"),
        ("id bigint, name string, more int", "no column 'more'"),
        ("id bigint", "column 'name' is missing"),
        ("id bigint, Name string", "no column 'Name'"),
        ("id bigint, name array<string>", "'name' is array here and string in the table"),
        ("id bigint, name interval day to second", "no type for"),
        ("id bigint, name variant", "no type for"),
        ("id bigint, name struct<a:array<void>>", "'name.a.element' is void"),
        ("id bigint, name string collate UTF8_LCASE", "collation"),
    ],
)
def test_schema_that_does_not_fit(spark: SparkSession, root: Path, columns: str, says: str) -> None:
    create(root, field("id"), field("name", "string", nullable=False))
    before = everything_below(root)
    frame = spark.createDataFrame([], columns)
    for key in (None, "id"):
        with pytest.raises(RowsRefused) as caught:
            DeltaSink(root, key).prepare(frame.schema, delivery(0))
        assert says in str(caught.value)
        with pytest.raises(RowsRefused):
            DeltaSink(root, key).stage(frame, delivery(1))
    assert everything_below(root) == before


@pytest.mark.parametrize("key", [None, "id"], ids=["append", "merge"])
def test_column_that_only_the_table_has(spark: SparkSession, root: Path, key: str | None) -> None:
    create(root, field("id"), field("more", "string"), field("name", "string"))
    deliver(DeltaSink(root, key), spark.createDataFrame([("one", 1)], "name string, id bigint"))
    assert read(root) == [{"id": 1, "more": None, "name": "one"}]


@pytest.mark.parametrize("key", [None, "id"], ids=["append", "merge"])
def test_nulls_where_the_table_takes_none(spark: SparkSession, root: Path, key: str | None) -> None:
    create(root, field("id"), field("name", "string", nullable=False))
    sink = DeltaSink(root, key)
    frame = spark.createDataFrame([(1, "one"), (2, None)], "id bigint, name string")
    sink.prepare(frame.schema, delivery(0))
    with pytest.raises(RowsRefused, match="nulls in 'name'"):
        sink.stage(frame, delivery(1))
    assert staged_in(root / "_holdfast_staging") == []
    deliver(sink, frame.where("name is not null"))
    assert read(root) == [{"id": 1, "name": "one"}]


@pytest.mark.parametrize("key", [None, "an.id"], ids=["append", "merge"])
def test_rows_that_would_be_refused_are_told_apart(spark: SparkSession, root: Path, key: str | None) -> None:
    create(root, field("an.id"), field("name", "string", nullable=False), field("more", "string"))
    rows = [(1, "one", None), (2, None, "x"), (None, "three", "x")]
    frame = spark.createDataFrame(rows, "`an.id` bigint, name string, more string")
    sink = DeltaSink(root, key)
    sink.prepare(frame.schema, delivery(0))
    reason = sink.refused(frame)
    assert reason is not None
    assert [row[0] for row in frame.select(reason).collect()] == [
        None,
        "column 'name' is null",
        "key column 'an.id' is null" if key else None,
    ]
    deliver(sink, frame.where(reason.isNull()))
    assert [row["name"] for row in read(root)] == (["one"] if key else ["one", "three"])


def test_a_table_that_refuses_no_row(spark: SparkSession, root: Path) -> None:
    frame = spark.createDataFrame([(1,)], "id bigint")
    sink = DeltaSink(root)
    sink.prepare(frame.schema, delivery(0))
    assert sink.refused(frame) is None


def test_new_table_is_nullable_and_without_sparks_metadata(spark: SparkSession, root: Path) -> None:
    frame = spark.range(1).selectExpr("id", "named_struct('a', 1) as s", "array(1) as l", "map('k', 1) as m")
    frame = frame.withMetadata("id", {"spark.watermarkDelayMs": 5})
    assert not frame.schema["id"].nullable
    deliver(DeltaSink(root), frame)
    stored = DeltaTable(root).schema().to_json()
    assert "false" not in stored
    assert "watermark" not in stored


def test_nulls_inside_where_the_table_takes_none(spark: SparkSession, root: Path) -> None:
    inner = {"type": "struct", "fields": [field("a", "integer", nullable=False)]}
    create(root, {"name": "s", "type": inner, "nullable": True, "metadata": {}})
    with pytest.raises(RowsRefused, match="may hold nulls"):
        DeltaSink(root).prepare(spark.createDataFrame([], "s struct<a:int>").schema, delivery(0))
    deliver(DeltaSink(root), spark.range(1).selectExpr("named_struct('a', 1) as s"))
    assert read(root) == [{"s": {"a": 1}}]


# Rules


@pytest.mark.parametrize(
    ("settings", "key", "says"),
    [
        ({"delta.columnMapping.mode": "name"}, None, "mapped"),
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, None, "forget"),
        ({"delta.appendOnly": "true"}, "id", "forbids merging"),
        ({"delta.enableDeletionVectors": "true"}, None, "deletionVectors"),
    ],
)
def test_table_whose_rules_cannot_be_kept(
    spark: SparkSession, root: Path, settings: dict[str, str], key: str | None, says: str
) -> None:
    create(root, field("id"), configuration=settings)
    frame = spark.createDataFrame([], "id bigint")
    for call in (lambda sink: sink.prepare(frame.schema, delivery(0)), lambda sink: sink.stage(frame, delivery(1))):
        with pytest.raises(Invalid, match=says):
            call(DeltaSink(root, key))


def test_check_constraints(spark: SparkSession, root: Path) -> None:
    create(root, field("id")).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(Invalid, match="CHECK"):
        DeltaSink(root).prepare(spark.createDataFrame([], "id bigint").schema, delivery(0))


def test_generated_columns(spark: SparkSession, root: Path) -> None:
    create(root, field("id"), field("twice", "long", **{"delta.generationExpression": "id * 2"}))
    with pytest.raises(Invalid, match="computed"):
        DeltaSink(root).prepare(spark.createDataFrame([], "id bigint, twice bigint").schema, delivery(0))


def test_append_only_and_change_feed(spark: SparkSession, root: Path) -> None:
    create(root, field("id"), configuration={"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"})
    deliver(DeltaSink(root), spark.createDataFrame([(1,)], "id bigint"))
    changes = pa.table(DeltaTable(root).load_cdf(starting_version=1)).to_pylist()
    assert [(row["id"], row["_change_type"]) for row in changes] == [(1, "insert")]


def test_directory_with_files_and_no_table(spark: SparkSession, root: Path) -> None:
    root.mkdir()
    pq.write_table(pa.table({"id": [1]}), root / "part-0.parquet")
    schema = spark.createDataFrame([], "id bigint").schema
    with pytest.raises(Invalid, match="convert_to_deltalake"):
        DeltaSink(root).prepare(schema, delivery(0))
    with pytest.raises(Invalid, match="not a directory"):
        DeltaSink(root / "part-0.parquet").prepare(schema, delivery(0))
    assert everything_below(root) == {str(root), str(root / "part-0.parquet")}


def test_table_whose_creation_was_interrupted(spark: SparkSession, root: Path) -> None:
    (root / "_delta_log").mkdir(parents=True)
    deliver(DeltaSink(root), spark.createDataFrame([(1,)], "id bigint"))
    assert read(root) == [{"id": 1}]


# Keys


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, "a", "x"), (1, "a", "y")], "more than once"),
        ([(1, "a", "x"), (2, "a", "y"), (1, "b", "z"), (2, "a", "y")], "more than once"),
        ([(None, "a", "x")], "has a null"),
        ([(1, None, "x")], "has a null"),
        ([(1, None, "x"), (1, None, "y")], "has a null"),
    ],
)
@pytest.mark.parametrize("there", [True, False], ids=["matched", "new"])
def test_ambiguous_keys(spark: SparkSession, root: Path, rows: list[Any], says: str, there: bool) -> None:
    sink = DeltaSink(root, key=["id", "kind"])
    columns = "id bigint, kind string, v string"
    before = [(1, "a", "old"), (2, "a", "old")] if there else []
    deliver(sink, spark.createDataFrame(before, columns))
    with pytest.raises(RowsRefused, match=says) as caught:
        sink.stage(spark.createDataFrame(rows, columns).repartition(3), delivery(2))
    assert "id, kind = (" in str(caught.value)
    assert staged_in(root / "_holdfast_staging") == []


@pytest.mark.parametrize(
    ("columns", "key", "delete", "says"),
    [
        ("id double, v int", "id", None, "is double, which cannot be a key"),
        ("id array<int>, v int", "id", None, "is array, which cannot be a key"),
        ("v int", "id", None, "no key column 'id'"),
        ("id int, gone string", "id", "gone", "no boolean column 'gone'"),
        ("id int", "id", "gone", "no boolean column 'gone'"),
    ],
)
def test_what_cannot_be_a_key(
    spark: SparkSession, root: Path, columns: str, key: str, delete: str | None, says: str
) -> None:
    with pytest.raises(RowsRefused, match=says):
        DeltaSink(root, key, delete=delete).prepare(spark.createDataFrame([], columns).schema, delivery(0))
    assert not root.exists()


def test_rows_marked_as_deleted_go_and_come_back(spark: SparkSession, root: Path) -> None:
    sink = DeltaSink(root, key='Key `q" ü', delete="is gone")
    columns = '`Key ``q" ü` string, v int, `is gone` boolean'
    epochs = [
        [("a", 1, False), ("b", 2, None), ("c", 3, False), ("never", 4, True)],
        [("a", 9, True), ("b", 22, False), ("missing", 5, True)],
        [("missing", 5, True)],
        [("a", 100, None)],
    ]
    for epoch, rows in enumerate(epochs, start=1):
        deliver(sink, spark.createDataFrame(rows, columns), epoch)
        assert sink.recover(delivery(epoch), None).committed == epoch
    found = sorted(tuple(row.values()) for row in DeltaTable(root).to_pyarrow_table().to_pylist())
    assert found == [("a", 100), ("b", 22), ("c", 3)]
    assert DeltaTable(root).to_pyarrow_table().schema.names == ['Key `q" ü', "v"]


@pytest.mark.parametrize("kind", ["string", "date", "timestamp", "decimal(10,2)", "binary", "boolean", "timestamp_ntz"])
def test_keys_of_every_type(spark: SparkSession, root: Path, kind: str) -> None:
    sink = DeltaSink(root, "k")
    literal = {"boolean": "true", "decimal(10,2)": "12.50", "binary": "abc"}.get(kind, "2026-01-02")
    for epoch in (1, 2):
        deliver(sink, spark.range(1).selectExpr(f"cast('{literal}' as {kind}) as k", f"{epoch} as v"), epoch)
    assert [row["v"] for row in read(root)] == [2]
