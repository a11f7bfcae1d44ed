"""Expressions for Spark that tell, before rows are copied, which of them the target would refuse, and why.

A reason concerns one row by itself, and Spark finds it exactly where PostgreSQL would: a row that the target would take
has no reason. `check_rows` finds all other problems, in the staged rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid
from holdfast.sinks.postgres.connection import connected, translated
from holdfast.sinks.postgres.table import CatalogTable, read_table
from holdfast.sinks.postgres.target import PostgresTarget, RowKey
from holdfast.sinks.postgres.types import PgType, goes_as_json
from holdfast.sinks.spark_write import column_named, first_reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

Test = Callable[["Column"], "Column"]
"""Whether a value is refused."""

_BYTES = {"ByteType": 1, "ShortType": 2, "IntegerType": 4, "LongType": 8}
_DIGITS = {"ByteType": 3, "ShortType": 5, "IntegerType": 10, "LongType": 19}
_COLUMN_BYTES = {"int2": 2, "int4": 4}
_UUID = r"\A(\{([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\}|([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})\z"
_YEAR_ONE = -62_135_596_800_000_000  # microseconds before 1970
_EARLY = "is before the year 1"


def refused(target: PostgresTarget, frame: DataFrame) -> Column | None:
    """`RefusesRows.refused`, by the table as it is now: it may have been altered since the pipeline was started."""
    with connected(target.dsn) as connection, translated("reading the table's columns", target.where, "the target"):
        catalog = read_table(connection, target.table)
    if catalog is None:
        raise Invalid("The target table is gone.", about=target.where, next_step="restore the table, and start again")
    return first_reason(conditions(catalog, frame.schema, target.row_key))


def conditions(catalog: CatalogTable, schema: StructType, row_key: RowKey) -> Iterator[tuple[Column, str]]:
    """Each reason to refuse a row: a condition, and its words. A row that deletes needs no values besides its key."""
    for field in schema.fields:
        column = catalog.column(field.name)
        if column is None:  # the one that marks deletions; for any other, `stage` refuses the whole frame
            continue
        value = column_named(field.name)
        if field.name in row_key.columns:
            yield value.isNull(), f"key column {field.name!r} is null"
        elif column.required:
            yield _kept(row_key) & value.isNull(), f"column {field.name!r}, which is NOT NULL, is null"
        for test, words in _tests(field.dataType, column.type):
            yield test(value), f"column {field.name!r} {words}"


def _kept(row_key: RowKey) -> Column:
    from pyspark.sql import functions

    if row_key.delete is None:
        return functions.lit(True)
    return ~functions.coalesce(column_named(row_key.delete), functions.lit(False))


def _tests(data_type: DataType, column: PgType) -> Iterator[tuple[Test, str]]:
    kind = type(data_type).__name__
    if kind == "ArrayType" and not goes_as_json(data_type) and column.element is not None:
        element: DataType = data_type.elementType  # type: ignore[attr-defined]
        inner = column if type(element).__name__ == "ArrayType" else column.element
        for test, words in _tests(element, inner):
            yield _any(test), f"has an element that {words}"
    elif kind in {"StringType", "CharType", "VarcharType"}:
        yield from _text_tests(column)
    elif kind in _BYTES and column.name in _COLUMN_BYTES and _BYTES[kind] > _COLUMN_BYTES[column.name]:
        yield _outside(-(1 << 8 * _COLUMN_BYTES[column.name] - 1)), f"is out of range for {column.written}"
    elif (kind in _BYTES or kind == "DecimalType") and column.digits is not None:
        precise: Any = data_type
        widest = _DIGITS[kind] if kind in _BYTES else precise.precision - precise.scale
        if 0 <= column.digits < widest:
            yield _too_large(column.digits), f"is out of range for {column.written}"
    else:
        yield from _time_tests(kind)


def _any(test: Test) -> Test:
    from pyspark.sql import functions

    return lambda values: functions.exists(values, lambda value: test(value))


def _text_tests(column: PgType) -> Iterator[tuple[Test, str]]:
    """On plain strings: under a collation, a search ignores characters."""
    from pyspark.sql import functions

    yield lambda value: value.cast("string").contains("\0"), "holds a NUL character, which PostgreSQL cannot store"
    yield lambda value: ~functions.is_valid_utf8(value.cast("string")), "is not valid UTF-8"
    length = column.length
    if length is not None:  # spaces at the end do not count, they are cut off
        yield (
            lambda value: functions.length(functions.rtrim(value.cast("string"))) > length,
            (f"is too long for {column.written}"),
        )
    if column.name == "uuid":
        yield lambda value: ~value.cast("string").rlike(_UUID), "is not a uuid"


def _outside(lowest: int) -> Test:
    return lambda value: (value < lowest) | (value > -lowest - 1)


def _too_large(digits: int) -> Test:
    from pyspark.sql import functions

    bound = functions.lit(str(10**digits)).cast(f"decimal({digits + 1},0)")
    return lambda value: (value >= bound) | (value <= -bound)


def _time_tests(kind: str) -> Iterator[tuple[Test, str]]:
    """PostgreSQL reads no year below 1 in the form that Arrow writes."""
    from pyspark.sql import functions

    if kind == "DateType":
        yield lambda value: value < functions.lit("0001-01-01").cast("date"), _EARLY
    elif kind == "TimestampType":
        yield lambda value: functions.unix_micros(value) < _YEAR_ONE, _EARLY
    elif kind == "TimestampNTZType":
        yield lambda value: value < functions.lit("0001-01-01 00:00:00").cast("timestamp_ntz"), _EARLY
