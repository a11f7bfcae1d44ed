"""Which PostgreSQL type a Spark type becomes in a new table, and which existing column types take it.

A column takes a type if every value arrives unchanged or is refused while it is staged: a long goes into an integer
column as long as it fits. A column that would silently lose something is refused before any data moves, with one
exception: timestamps are rounded to a column's precision, since Spark has no type with fewer digits. Arrays of arrays
become multidimensional arrays. In PostgreSQL their rows have equal length and are never empty: `[[]]` arrives as `[]`.
Structs and maps become JSON as Spark writes it, with timestamps in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_NEW = {
    "ByteType": "smallint",
    "ShortType": "smallint",
    "IntegerType": "integer",
    "LongType": "bigint",
    "FloatType": "real",
    "DoubleType": "double precision",
    "StringType": "text",
    "CharType": "text",
    "VarcharType": "text",
    "BooleanType": "boolean",
    "DateType": "date",
    "TimestampType": "timestamp with time zone",
    "TimestampNTZType": "timestamp without time zone",
    "BinaryType": "bytea",
}
_INTEGERS = {"int2", "int4", "int8", "numeric"}
_TAKEN_BY = {
    "ByteType": _INTEGERS | {"float4", "float8"},
    "ShortType": _INTEGERS | {"float4", "float8"},
    "IntegerType": _INTEGERS | {"float8"},
    "LongType": _INTEGERS,
    "FloatType": {"float4", "float8"},
    "DoubleType": {"float8"},
    "DecimalType": {"numeric"},
    "BooleanType": {"bool"},
    "DateType": {"date"},
    "TimestampType": {"timestamptz"},
    "TimestampNTZType": {"timestamp"},
    "BinaryType": {"bytea"},
}
_STRINGS = {"StringType", "CharType", "VarcharType"}
_DOCUMENTS = {"StructType", "MapType", "VariantType"}
_NO_STRING = "NBDTA"  # numbers, booleans, dates and times, timespans, arrays: a string there is a forgotten cast


class PgType(msgspec.Struct, frozen=True):
    """A type from the catalog; for a domain, its base type."""

    name: str
    """The name in pg_type: `int4`, not `integer`."""
    category: str
    modifier: int
    written: str
    """The name in SQL, with length or precision."""
    element: PgType | None = None

    @property
    def scale(self) -> int | None:
        """Digits after the decimal point that a numeric keeps; None if it keeps all."""
        if self.name != "numeric" or self.modifier < 0:
            return None
        return (((self.modifier - 4) & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign

    @property
    def digits(self) -> int | None:
        """Digits before the decimal point that a numeric has room for; None if there is no limit."""
        scale = self.scale
        return None if scale is None else ((self.modifier - 4) >> 16 & 0xFFFF) - scale

    @property
    def length(self) -> int | None:
        """Characters that a varchar or char has room for; None if there is no limit."""
        return self.modifier - 4 if self.name in {"varchar", "bpchar"} and self.modifier >= 4 else None

    @property
    def varies(self) -> bool:
        """Whether a value can be too long for an index."""
        return self.category in "SAUXVEI" or self.name == "numeric"


def goes_as_json(data_type: DataType) -> bool:
    """Whether values travel as JSON documents: structs, maps, variants, and arrays of them."""
    kind = type(data_type).__name__
    return kind in _DOCUMENTS or (kind == "ArrayType" and goes_as_json(_element(data_type)))


def new_column(data_type: DataType) -> str | None:
    """The type of a new column for these values; None if PostgreSQL has none."""
    kind = type(data_type).__name__
    if kind == "DecimalType":
        precise: Any = data_type
        return f"numeric({precise.precision},{precise.scale})"
    if goes_as_json(data_type):
        return "jsonb"
    if kind == "ArrayType":
        element = new_column(_element(data_type))
        return None if element is None else element.removesuffix("[]") + "[]"
    return _NEW.get(kind)


def why_not(data_type: DataType, column: PgType) -> str | None:
    """Why a column of this type does not take the values; None if it does."""
    kind = type(data_type).__name__
    if new_column(data_type) is None:
        return f"a sink to PostgreSQL does not know Spark's type {data_type.simpleString()}"
    if goes_as_json(data_type):
        return _unless(column.name in {"jsonb", "json", "text"}, data_type, column)
    if kind == "ArrayType":
        if column.element is None:
            return _unless(column.name in {"jsonb", "json"}, data_type, column)
        element = _element(data_type)
        return why_not(element, column if type(element).__name__ == "ArrayType" else column.element)
    if kind in _STRINGS:
        return _unless(column.category not in _NO_STRING and column.name != "bytea", data_type, column)
    if kind == "DecimalType" and column.scale is not None:
        precise: Any = data_type
        if column.scale < precise.scale:
            return f"{column.written} would round {data_type.simpleString()}"
    return _unless(column.name in _TAKEN_BY[kind], data_type, column)


def cast_for(data_type: DataType, column: PgType) -> str | None:
    """How Spark casts a value before it is copied: "json", a Spark type, or None for no cast.

    A float becomes a double if the column is one: the float's shortest decimal form would be read as another double.
    """
    if goes_as_json(data_type):
        return "json"
    if type(data_type).__name__ == "ArrayType":
        if column.element is None:
            return "json"
        element = _element(data_type)
        cast = cast_for(element, column if type(element).__name__ == "ArrayType" else column.element)
        return None if cast is None else f"array<{cast}>"
    return "double" if type(data_type).__name__ == "FloatType" and column.name == "float8" else None


def _unless(taken: bool, data_type: DataType, column: PgType) -> str | None:
    return None if taken else f"{column.written} does not take {data_type.simpleString()}"


def _element(data_type: Any) -> DataType:
    element: DataType = data_type.elementType
    return element
