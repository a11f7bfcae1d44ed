"""Rows as keys and values: JSON documents, made and read by Spark's executors.

A key is the document of the key columns in their order, `{"shop":"a","day":"2026-01-31"}`, so that a scan by the first
key columns is a scan by prefix. A value is the document of all columns except the `delete` column. Times are in UTC
with microseconds. A column whose type JSON cannot hold exactly is refused, and so is a key column of such a type.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

KEY, VALUE = "key", "value"
OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
_KEY_KINDS = {"string", "boolean", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz"}
_VALUE_KINDS = _KEY_KINDS | {"float", "double", "binary"}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")  # values of a float column that JSON has no numbers for
_CONTROL = re.compile(r"\\u00([0-9a-f]{2})")


def problems(schema: StructType, key: Sequence[str], delete: str | None) -> list[str]:
    """The reasons why rows of this schema cannot be stored; empty if they can."""
    kinds = {field.name: field.dataType for field in schema.fields}
    found = [f"the column {name!r} is there twice" for name in kinds if schema.names.count(name) > 1]
    for name in key:
        if name not in kinds:
            found.append(f"there is no key column {name!r}")
        elif not _is_key(kinds[name]):
            found.append(f"the key column {name!r} is {kinds[name].simpleString()}, which cannot be a key")
    if delete is not None and (delete not in kinds or kinds[delete].typeName() != "boolean"):
        found.append(f"there is no boolean column {delete!r} to mark the rows that delete")
    found += [
        f"the column {name!r} is {kind.simpleString()}, which cannot be stored exactly"
        for name, kind in kinds.items()
        if not _is_exact(kind)
    ]
    return found


def encoded(frame: DataFrame, key: Sequence[str], delete: str | None) -> DataFrame:
    """The rows as columns `key` and `value`; a null value deletes its key."""
    return frame.select(*documents(frame.columns, key, delete))


def documents(columns: Sequence[str], key: Sequence[str], delete: str | None) -> tuple[Column, Column]:
    """The columns of `encoded`, which can be used for any frame that has these columns."""
    return key_document(key).alias(KEY), value_document(columns, delete).alias(VALUE)


def key_document(key: Sequence[str]) -> Column:
    """The key of a row, as bytes; null if a column of it is null."""
    from pyspark.sql import functions as f

    has_null = f.lit(False)
    for name in key:
        has_null = has_null | f.col(f"`{name}`").isNull()
    whole = f.to_json(f.struct(*(f.col(f"`{name}`") for name in key)), OPTIONS).cast("binary")
    return f.when(~has_null, whole)


def value_document(columns: Sequence[str], delete: str | None) -> Column:
    """The value of a row, as bytes; null if the row deletes."""
    from pyspark.sql import functions as f

    stored = [f.col(f"`{name}`") for name in columns if name != delete]
    value = f.to_json(f.struct(*stored), OPTIONS).cast("binary")
    if delete is not None:
        value = f.when(f.coalesce(f.col(f"`{delete}`"), f.lit(False)), f.lit(None)).otherwise(value)
    return value


def decoded(documents: DataFrame, schema: StructType) -> DataFrame:
    """Rows of this schema from a column of values."""
    from pyspark.sql import functions as f

    row = f.from_json(f.col(VALUE).cast("string"), schema, {**OPTIONS, "mode": "FAILFAST"})
    return documents.select(row.alias("row")).select("row.*")


def columns_of(schema: StructType, delete: str | None) -> str:
    """The schema of the stored rows, in Spark's JSON: without the `delete` column."""
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != delete]).json()


def row_reader(columns: str | None) -> Callable[[bytes], dict[str, Any]]:
    """A function that reads one row from its value: decimals are `Decimal`, exactly, and all floats are floats.

    Dates, times and binary columns are the texts of the JSON document. Without columns, numbers with a fraction are
    floats, even those of a decimal column.

    A row of older columns is read whole: a column that it lacks is None, and one that the newest rows lack, or have
    with another type, is what its document says, where a number with a fraction is a `Decimal`.
    """
    if columns is None:
        return json.loads
    convert = _converter(json.loads(columns))
    return lambda value: convert(json.loads(value, parse_float=decimal.Decimal))


def _converter(kind: Any) -> Callable[[Any], Any]:
    """Converts a value of a JSON document, in which fractions are `Decimal`s, to the type that its column has.

    A null, and a value that no column of this type can have, stays as it is.
    """
    if isinstance(kind, dict) and kind["type"] == "struct":
        fields = {field["name"]: _converter(field["type"]) for field in kind["fields"]}
        return _of(dict, lambda row: _row(row, fields))
    if isinstance(kind, dict) and kind["type"] == "array":
        item = _converter(kind["elementType"])
        return _of(list, lambda items: [item(found) for found in items])
    if isinstance(kind, dict) and kind["type"] == "map":
        value = _converter(kind["valueType"])
        return _of(dict, lambda pairs: {name: value(found) for name, found in pairs.items()})
    if str(kind).startswith("decimal"):
        return _of((int, decimal.Decimal), decimal.Decimal)
    if kind in ("float", "double"):
        number = _of((int, decimal.Decimal), float)
        return lambda value: float(value) if value in _NO_NUMBERS else number(value)
    return lambda value: value


def _row(row: dict[str, Any], fields: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    known = {name: convert(row.get(name)) for name, convert in fields.items()}
    return known | {name: value for name, value in row.items() if name not in fields}


def _of(kind: Any, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: convert(value) if isinstance(value, kind) and not isinstance(value, bool) else value


def key_bytes(columns: Sequence[str], values: Mapping[str, Any]) -> bytes:
    """The key of a row with these values. With only the first key columns: the prefix of all such keys."""
    given = [name for name in columns if name in values]
    unknown = sorted(values.keys() - set(columns))
    if unknown or not given or list(columns[: len(given)]) != given:
        raise Invalid(
            f"The key is {', '.join(columns)}; {', '.join(unknown) or ', '.join(given) or 'nothing'} was given.",
            code="index.key",
            unchanged="everything",
            next_step="give the key's columns, or the first of them",
        )
    parts = ",".join(f"{_text(name)}:{_literal(name, values[name])}" for name in given)
    return ("{" + parts + ("}" if len(given) == len(columns) else ",")).encode()


def _literal(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return _digits(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return f'"{value.isoformat(timespec="microseconds")}"'
        shown = value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
        return f'"{shown}Z"'
    if isinstance(value, datetime.date):
        return f'"{value.isoformat()}"'
    raise Invalid(
        f"{name}={value!r} cannot be part of a key.",
        code="index.key",
        unchanged="everything",
        next_step="give a str, bool, int, Decimal, date or datetime, as the column has it",
    )


def _digits(value: decimal.Decimal) -> str:
    """The text of Java's BigDecimal, as Spark writes it: an exponent from 1E-7 down, and no negative zero."""
    shown = value or value.copy_abs()
    return format(shown, "f") if int(shown.as_tuple().exponent) > 0 else str(shown).upper()


def _text(value: str) -> str:
    """The JSON string as Spark writes it: the same escapes, with upper-case hex digits."""
    return _CONTROL.sub(lambda found: f"\\u00{found[1].upper()}", json.dumps(value, ensure_ascii=False))


def _is_key(kind: DataType) -> bool:
    return kind.typeName() in _KEY_KINDS or kind.typeName() == "decimal"


def _is_exact(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _is_exact(kind.elementType)
    if isinstance(kind, MapType):  # names in a JSON document are strings
        return kind.keyType.typeName() == "string" and _is_exact(kind.valueType)
    if isinstance(kind, StructType):
        return all(_is_exact(field.dataType) for field in kind.fields)
    return kind.typeName() in _VALUE_KINDS or kind.typeName() == "decimal"
