"""What the sink decides without a server."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from postgres_hands import at
from pyspark.sql import types as spark

from holdfast.errors import Invalid
from holdfast.sinks.postgres.copy_task import SLICE, ValueRefused, lines, slices
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.postgres.sql import StagedRows, merge, ranges
from holdfast.sinks.postgres.table import TableName, is_staged_name, parse_table, staged_name
from holdfast.sinks.postgres.types import PgType, cast_for, new_column, why_not


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", None, "orders"),
        ("Sales.Orders", "Sales", "Orders"),
        ('"a.b"."c""d"', "a.b", 'c"d'),
        ('sales."x.y"', "sales", "x.y"),
        ('wei"rd näme', None, 'wei"rd näme'),
        ("é" * 31, None, "é" * 31),
    ],
)
def test_table_names(text: str, schema: str | None, name: str) -> None:
    table = parse_table(text)
    assert (table.schema, table.name) == (schema, name)
    assert parse_table(str(table)) == table


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"a', '""', '"a"b', "a\0", "é" * 32, "x" * 64])
def test_what_is_no_table_name(text: str) -> None:
    with pytest.raises(Invalid):
        parse_table(text)


def test_staging_names_fit_and_differ() -> None:
    long = at(1, pipeline="p" * 300, sink="ß" * 300)
    names = {staged_name(d, token) for d in (long, at(1), at(2), at(1, generation=2)) for token in ("a", "b")}
    assert len(names) == 8
    assert all(len(name.encode()) <= 63 and is_staged_name(name) for name in names)
    for name in ("orders", "holdfast_commits", "holdfast_staged_", "holdfast_staged_x'; DROP", 'holdfast_staged_"'):
        assert not is_staged_name(name)


def test_few_ranges() -> None:
    assert ranges([]) == []
    assert ranges([7, 5, 6, 9, 11, 10]) == [(5, 7), (9, 11)]


def test_arguments() -> None:
    for wrong in (
        {"key": []},
        {"key": ["a", "a"]},
        {"key": ["x" * 64]},
        {"delete": "gone"},
        {"key": "gone", "delete": "gone"},
    ):
        with pytest.raises(Invalid):
            PostgresSink("dbname=x", "t", **wrong)  # type: ignore[arg-type]


def test_description() -> None:
    sink = PostgresSink("postgresql://me:secret@db.example:5433/shop", "sales.orders", "id", delete="gone")
    assert sink.describe() == {
        "kind": "postgres",
        "table": '"sales"."orders"',
        "key": ["id"],
        "delete": "gone",
        "host": "db.example",
        "port": "5433",
        "dbname": "shop",
    }
    other = PostgresSink("postgresql://you:other@db.example:5433/shop", "sales.orders", ["id"], delete="gone")
    assert other.describe() == sink.describe()
    sink.describe()["key"] = "changed"
    assert other.describe() == sink.describe()


def test_merge_without_key_only_inserts() -> None:
    staged = StagedRows(TableName("s", "stage"), TableName("s", "t"), ("a", "b"), (), False, [(1, 2), (5, 5)])
    (insert,) = merge(staged)
    assert insert.as_string(None) == (
        'INSERT INTO "s"."t" ("a", "b") SELECT "a", "b" FROM "s"."stage" s '
        "WHERE s.\"holdfast_attempt\" <@ '{[1,2],[5,5]}'::int8multirange"
    )


def test_merge_with_nothing_but_the_key() -> None:
    (insert,) = merge(StagedRows(TableName("s", "stage"), TableName("s", "t"), ("a",), ("a",), False, []))
    assert insert.as_string(None).endswith('ORDER BY "a" ON CONFLICT ("a") DO NOTHING')


INT4 = PgType("int4", "N", -1, "integer")
FLOAT8 = PgType("float8", "N", -1, "double precision")
TEXT = PgType("text", "S", -1, "text")
JSONB = PgType("jsonb", "U", -1, "jsonb")


def numeric(precision: int, scale: int) -> PgType:
    return PgType("numeric", "N", ((precision << 16) | (scale & 0x7FF)) + 4, f"numeric({precision},{scale})")


def listed(element: PgType) -> PgType:
    return PgType("_" + element.name, "A", element.modifier, element.written + "[]", element)


STRUCT = spark.StructType().add("a", "integer")
TAKEN = [
    (spark.LongType(), INT4, True),
    (spark.LongType(), FLOAT8, False),
    (spark.IntegerType(), FLOAT8, True),
    (spark.DoubleType(), FLOAT8, True),
    (spark.DoubleType(), PgType("float4", "N", -1, "real"), False),
    (spark.DoubleType(), numeric(10, 2), False),
    (spark.FloatType(), FLOAT8, True),
    (spark.DecimalType(10, 2), numeric(8, 2), True),
    (spark.DecimalType(10, 3), numeric(12, 2), False),
    (spark.DecimalType(10, 0), numeric(12, -2), False),
    (spark.DecimalType(38, 18), PgType("numeric", "N", -1, "numeric"), True),
    (spark.DecimalType(10, 0), INT4, False),
    (spark.StringType(), TEXT, True),
    (spark.StringType(), PgType("uuid", "U", -1, "uuid"), True),
    (spark.StringType(), PgType("mood", "E", -1, "mood"), True),
    (spark.StringType(), JSONB, True),
    (spark.StringType(), INT4, False),
    (spark.StringType(), PgType("bytea", "U", -1, "bytea"), False),
    (spark.BooleanType(), PgType("bool", "B", -1, "boolean"), True),
    (spark.BooleanType(), INT4, False),
    (spark.TimestampType(), PgType("timestamptz", "D", -1, "timestamp with time zone"), True),
    (spark.TimestampType(), PgType("timestamp", "D", -1, "timestamp without time zone"), False),
    (spark.TimestampNTZType(), PgType("timestamptz", "D", -1, "timestamp with time zone"), False),
    (spark.BinaryType(), PgType("bytea", "U", -1, "bytea"), True),
    (spark.BinaryType(), TEXT, False),
    (spark.ArrayType(spark.LongType()), listed(INT4), True),
    (spark.ArrayType(spark.StringType()), listed(INT4), False),
    (spark.ArrayType(spark.StringType()), JSONB, True),
    (spark.ArrayType(spark.StringType()), TEXT, False),
    (spark.ArrayType(spark.ArrayType(spark.LongType())), listed(INT4), True),
    (spark.ArrayType(spark.ArrayType(spark.StringType())), listed(INT4), False),
    (spark.ArrayType(STRUCT), JSONB, True),
    (spark.ArrayType(STRUCT), listed(JSONB), False),
    (STRUCT, JSONB, True),
    (STRUCT, INT4, False),
    (spark.MapType(spark.StringType(), spark.LongType()), JSONB, True),
    (spark.DayTimeIntervalType(), PgType("interval", "T", -1, "interval"), False),
    (spark.NullType(), TEXT, False),
]


@pytest.mark.parametrize(("data_type", "column", "taken"), TAKEN, ids=lambda v: getattr(v, "written", None))
def test_which_columns_take_which_types(data_type: spark.DataType, column: PgType, taken: bool) -> None:
    reason = why_not(data_type, column)
    assert (reason is None) is taken, reason


def test_new_columns() -> None:
    assert new_column(spark.DecimalType(12, 3)) == "numeric(12,3)"
    assert new_column(spark.ArrayType(spark.ArrayType(spark.LongType()))) == "bigint[]"
    assert new_column(spark.ArrayType(STRUCT)) == "jsonb"
    assert new_column(spark.DayTimeIntervalType()) is None
    assert new_column(spark.ArrayType(spark.NullType())) is None


def test_casts() -> None:
    assert cast_for(spark.FloatType(), FLOAT8) == "double"
    assert cast_for(spark.ArrayType(spark.FloatType()), listed(FLOAT8)) == "array<double>"
    assert cast_for(spark.ArrayType(spark.ArrayType(spark.FloatType())), listed(FLOAT8)) == "array<array<double>>"
    assert cast_for(STRUCT, JSONB) == "json"
    assert cast_for(spark.ArrayType(spark.StringType()), JSONB) == "json"
    assert cast_for(spark.LongType(), INT4) is None


def copied(values: list[Any], kind: pa.DataType) -> list[str]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["c"])
    rows = lines(batch, ["c"], 7).decode().split("\n")
    assert rows.pop() == ""
    assert all(row.endswith("\t7") for row in rows)
    return [row.removesuffix("\t7") for row in rows]


def test_lines_as_copy_reads_them() -> None:
    assert copied([1, None, -5], pa.int64()) == ["1", r"\N", "-5"]
    assert copied(["a\tb\nc\rd\\e", r"\N", "", None], pa.string()) == [r"a\tb\nc\rd\\e", r"\\N", "", r"\N"]
    assert copied([b"\x00\\", None], pa.binary()) == [r"\\x005c", r"\N"]
    assert copied([decimal.Decimal("-0.10"), decimal.Decimal(10) ** 30], pa.decimal128(38, 2))[0] == "-0.10"
    assert copied([float("nan"), float("inf"), 0.1], pa.float64()) == ["nan", "inf", "0.1"]
    assert copied([datetime.date(1, 1, 1)], pa.date32()) == ["0001-01-01"]
    assert copied([True, False], pa.bool_()) == ["true", "false"]


def test_instants_do_not_depend_on_their_label() -> None:
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        assert copied([0], pa.timestamp("us", tz=zone)) == ["1970-01-01 00:00:00.000000Z"]
    assert copied([0], pa.timestamp("us")) == ["1970-01-01 00:00:00.000000"]


def test_arrays_as_postgres_reads_them() -> None:
    assert copied([[1, None], None, []], pa.list_(pa.int32())) == ['{"1",NULL}', r"\N", "{}"]
    assert copied([["NULL", 'q"', "b\\", ""]], pa.list_(pa.string())) == [r'{"NULL","q\\"","b\\\\",""}']
    assert copied([[[1], [2]], [[3]]], pa.list_(pa.list_(pa.int64()))) == ['{{"1"},{"2"}}', '{{"3"}}']
    sliced = pa.array([["x"], None, ["y", "z"], ["w"]]).slice(1, 2)
    batch = pa.RecordBatch.from_arrays([sliced], names=["c"])
    assert lines(batch, ["c"], 7) == b'\\N\t7\n{"y","z"}\t7\n'


def test_nul_names_the_column() -> None:
    for values, kind in (["a\0b"], pa.string()), ([["fine"], ["\0"]], pa.list_(pa.string())):
        with pytest.raises(ValueRefused) as caught:
            copied(values, kind)
        assert caught.value.refusal.column == "c"
        assert "NUL" in caught.value.refusal.why


def test_long_rows_go_in_small_pieces() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["x" * (SLICE // 2)] * 5 + ["y"])], names=["c"])
    pieces = list(slices(batch))
    assert len(pieces) > 2
    assert pa.Table.from_batches(pieces).to_pydict() == pa.Table.from_batches([batch]).to_pydict()
    assert list(slices(batch.slice(0, 0))) == []


def test_importing_needs_neither_psycopg_nor_pyspark() -> None:
    program = """
import sys
for name in ("psycopg", "pyspark", "pyarrow"):
    sys.modules[name] = None
import holdfast.sinks.postgres.sink, holdfast.errors
try:
    holdfast.sinks.PostgresSink("dbname=x", "t")
except holdfast.errors.Invalid as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'holdfast[postgres]'" in done.stdout
