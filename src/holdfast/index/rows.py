"""Rows as keys and values: JSON documents, made and read by Spark's executors.

A key is the document of the key columns in their order, `{"shop":"a","day":"2026-01-31"}`, so that a scan by its first
columns is a scan by prefix. A value is the document of all columns but the one that deletes. Times are in UTC and to
the microsecond; what a document cannot hold exactly is refused as a column, or as a key.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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
_CONTROL = re.compile(r"\\u00([0-9a-f]{2})")


def problems(schema: StructType, key: Sequence[str], delete: str | None) -> list[str]:
    """Why these columns cannot be kept, in words; none if they can."""
    kinds = {field.name: field.dataType for field in schema.fields}
    found = [f"the column {name!r} is there twice" for name in kinds if schema.names.count(name) > 1]
    for name in key:
        if name not in kinds:
            found.append(f"there is no key column {name!r}")
        elif not _is_key(kinds[name]):
            found.append(f"the key column {name!r} is {kinds[name].simpleString()}, which cannot be a key")
    if delete is not None and (delete not in kinds or kinds[delete].typeName() != "boolean"):
        found.append(f"there is no boolean column {delete!r} to tell which rows delete")
    found += [
        f"the column {name!r} is {kind.simpleString()}, which is not kept exactly"
        for name, kind in kinds.items()
        if not _is_exact(kind)
    ]
    return found


def encoded(frame: DataFrame, key: Sequence[str], delete: str | None) -> DataFrame:
    """The rows as keys and values; a value that is null deletes."""
    from pyspark.sql import functions as f

    stored = [f.col(f"`{name}`") for name in frame.columns if name != delete]
    value = f.to_json(f.struct(*stored), OPTIONS).cast("binary")
    if delete is not None:
        value = f.when(f.coalesce(f.col(f"`{delete}`"), f.lit(False)), f.lit(None)).otherwise(value)
    has_null = f.lit(False)
    for name in key:
        has_null = has_null | f.col(f"`{name}`").isNull()
    whole = f.to_json(f.struct(*(f.col(f"`{name}`") for name in key)), OPTIONS).cast("binary")
    return frame.select(f.when(~has_null, whole).alias(KEY), value.alias(VALUE))


def decoded(documents: DataFrame, schema: StructType) -> DataFrame:
    """Rows of this schema from a column of values."""
    from pyspark.sql import functions as f

    row = f.from_json(f.col(VALUE).cast("string"), schema, {**OPTIONS, "mode": "FAILFAST"})
    return documents.select(row.alias("row")).select("row.*")


def key_bytes(columns: Sequence[str], values: Mapping[str, Any]) -> bytes:
    """The key that a row with these values has. Fewer columns than the key has give the prefix of all such keys."""
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
    """As Java writes a BigDecimal, which Spark does: 1E-7 and less with an exponent, and no zero with a sign."""
    shown = value or value.copy_abs()
    return format(shown, "f") if int(shown.as_tuple().exponent) > 0 else str(shown).upper()


def _text(value: str) -> str:
    """As Spark writes it: the same escapes, with capital digits."""
    return _CONTROL.sub(lambda found: f"\\u00{found[1].upper()}", json.dumps(value, ensure_ascii=False))


def _is_key(kind: DataType) -> bool:
    return kind.typeName() in _KEY_KINDS or kind.typeName() == "decimal"


def _is_exact(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _is_exact(kind.elementType)
    if isinstance(kind, MapType):  # a document has nothing but texts for names
        return kind.keyType.typeName() == "string" and _is_exact(kind.valueType)
    if isinstance(kind, StructType):
        return all(_is_exact(field.dataType) for field in kind.fields)
    return kind.typeName() in _VALUE_KINDS or kind.typeName() == "decimal"
