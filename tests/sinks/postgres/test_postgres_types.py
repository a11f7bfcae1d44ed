"""Which columns take which of Spark's types."""

from __future__ import annotations

import pytest
from pyspark.sql import types as spark

from holdfast.sinks.postgres.types import PgType, cast_for, new_column, why_not

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


def test_types_that_are_cast_before_they_are_copied() -> None:
    assert cast_for(spark.FloatType(), FLOAT8) == "double"
    assert cast_for(spark.ArrayType(spark.FloatType()), listed(FLOAT8)) == "array<double>"
    assert cast_for(spark.ArrayType(spark.ArrayType(spark.FloatType())), listed(FLOAT8)) == "array<array<double>>"
    assert cast_for(STRUCT, JSONB) == "json"
    assert cast_for(spark.ArrayType(spark.StringType()), JSONB) == "json"
    assert cast_for(spark.LongType(), INT4) is None
