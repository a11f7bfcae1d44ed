"""Which Delta tables can be written to, and which schemas fit them.

Schemas are compared as JSON, which Spark and Delta write alike. No I/O except on an opened table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    from deltalake import DeltaTable

Json = Any
PRIMITIVES = {
    "binary",
    "boolean",
    "byte",
    "date",
    "double",
    "float",
    "integer",
    "long",
    "short",
    "string",
    "timestamp",
    "timestamp_ntz",
}
KEYS = PRIMITIVES - {"float", "double"}
PARTITIONS = {"boolean", "byte", "date", "integer", "long", "short", "string"}
_DECIMAL = re.compile(r"decimal\(\d+,\d+\)")


def is_primitive(kind: Json) -> bool:
    return isinstance(kind, str) and (kind in PRIMITIVES or _DECIMAL.fullmatch(kind) is not None)


def is_key(kind: Json) -> bool:
    """Whether every engine agrees on equality of such keys: no floats (NaN, -0.0), nothing nested."""
    return is_primitive(kind) and kind not in PRIMITIVES - KEYS


def shown(kind: Json) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def new_table_schema(fields: list[Json]) -> Json:
    """The schema of a new table: nullable throughout, because the nullability of a query changes with its plan.

    Without metadata, which holds Spark's internals (watermarks, lengths).
    """
    return {"type": "struct", "fields": [_plain(field) for field in fields]}


def unsupported(fields: list[Json], above: str = "") -> Iterator[str]:
    """A sentence for each column that Delta cannot store."""
    for field in fields:
        name = above + field["name"]
        if "__COLLATIONS" in field.get("metadata", {}):
            yield f"{name!r} has a collation, which Delta does not keep"
        yield from _unsupported_type(field["type"], name)


def misfits(
    table: list[Json],
    frame: list[Json],
    *,
    partitioned_by: Collection[str] = (),
    missing_ok: bool = True,
    may_add: bool = False,
) -> Iterator[str]:
    """The reasons why rows with the schema `frame` do not fit into the table. Empty if they fit.

    A column that only the table has is filled with nulls, if it is nullable. Top-level primitive columns may be
    nullable in the frame and not in the table: then their values are checked, see `required`. With `may_add`, columns
    that only the frame has fit, too: see `added`.
    """
    have = {field["name"]: field for field in frame}
    want = {field["name"]: field for field in table}
    for name, field in have.items():
        if name not in want:
            alike = next((other for other in want if other.lower() == name.lower()), None)
            if alike is not None and may_add:
                yield f"the table has {alike!r}, and {name!r} differs from it only in case"
            elif not may_add:
                yield f"the table has no column {name!r}"
        elif _bare(field["type"]) != _bare(want[name]["type"]):
            yield f"{name!r} is {shown(field['type'])} here and {shown(want[name]['type'])} in the table"
        elif _is_stricter(want[name]["type"], field["type"]) or (
            field["nullable"] and not want[name]["nullable"] and not is_primitive(field["type"])
        ):
            yield f"{name!r} may hold nulls where the table takes none"
    for name, field in want.items():
        if name not in have and (not field["nullable"] or name in partitioned_by or not missing_ok):
            yield f"the table's column {name!r} is missing"


def added(table: list[Json], frame: list[Json]) -> list[Json]:
    """The columns that only the frame has, as they would be in the table: nullable, without Spark's metadata."""
    have = {field["name"] for field in table}
    return [_plain(field) for field in frame if field["name"] not in have]


def unmergeable(table: DeltaTable, new: list[Json]) -> Iterator[str]:
    """The new columns that a merge must not add.

    delta-rs 1.6 adds the column and not the feature that it needs, and nobody can read the table any more.
    """
    features = table.protocol().writer_features or []
    for field in new:
        if "timestampNtz" not in features and '"timestamp_ntz"' in msgspec.json.encode(field).decode():
            yield (
                f"{field['name']!r} is timestamp_ntz, which a merge cannot add to this table: cast it to timestamp, or "
                "add it first by DeltaTable.alter.add_columns"
            )


def required(table: list[Json], frame: list[Json]) -> set[str]:
    """The columns that are nullable in the frame and not in the table: their values must not be null."""
    nullable = {field["name"] for field in frame if field["nullable"]}
    return {field["name"] for field in table if not field["nullable"] and field["name"] in nullable}


def _unsupported_type(kind: Json, name: str) -> Iterator[str]:
    if isinstance(kind, str) or not isinstance(kind, dict):
        if not is_primitive(kind):
            yield f"{name!r} is {shown(kind)}, which Delta has no type for"
    elif kind["type"] == "struct":
        yield from unsupported(kind["fields"], f"{name}.")
    elif kind["type"] == "array":
        yield from _unsupported_type(kind["elementType"], f"{name}.element")
    elif kind["type"] == "map":
        yield from _unsupported_type(kind["keyType"], f"{name}.key")
        yield from _unsupported_type(kind["valueType"], f"{name}.value")
    else:
        yield f"{name!r} is {kind['type']}, which Delta has no type for"


def _plain(field: Json) -> Json:
    return {"name": field["name"], "type": _plain_type(field["type"]), "nullable": True, "metadata": {}}


def _plain_type(kind: Json) -> Json:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return {"type": "struct", "fields": [_plain(field) for field in kind["fields"]]}
    if kind["type"] == "array":
        return {"type": "array", "elementType": _plain_type(kind["elementType"]), "containsNull": True}
    key, value = _plain_type(kind["keyType"]), _plain_type(kind["valueType"])
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


_bare = _plain_type  # types without nullability, to compare them


def _is_stricter(table: Json, frame: Json) -> bool:
    """Whether the table's type, otherwise equal, forbids nested nulls that the frame's type allows."""
    if isinstance(table, str):
        return False
    if table["type"] == "struct":
        pairs = list(zip(table["fields"], frame["fields"], strict=True))
        return any((b["nullable"] and not a["nullable"]) or _is_stricter(a["type"], b["type"]) for a, b in pairs)
    if table["type"] == "array":
        forbids = frame["containsNull"] and not table["containsNull"]
        return forbids or _is_stricter(table["elementType"], frame["elementType"])
    forbids = frame["valueContainsNull"] and not table["valueContainsNull"]
    deeper = ((table[part], frame[part]) for part in ("keyType", "valueType"))
    return forbids or any(_is_stricter(a, b) for a, b in deeper)


# Table features that require nothing of a writer that only adds files, or that are checked below.
FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "generatedColumns",
    "invariants",
    "timestampNtz",
}
NEWEST_WITHOUT_FEATURES = 6
UNFIT_SETTINGS = (
    "delta.enableDeletionVectors",
    "delta.enableRowTracking",
    "delta.enableInCommitTimestamps",
    "delta.enableIcebergCompatV1",
    "delta.enableIcebergCompatV2",
    "delta.enableTypeWidening",
)
COMPUTED = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


def check_table(table: DeltaTable, path: str, *, merging: bool) -> None:
    """`Invalid` for a table with rules that this sink cannot enforce: files added to the log bypass all checks."""
    settings = unfit_settings(table.metadata().configuration, merging=merging)
    reasons = _protocol(table) + settings + _columns(table, merging=merging)
    if reasons:
        raise Invalid(
            f"This Delta table cannot be written to: {'; '.join(reasons)}.",
            code="sink.delta-table",
            about=path,
            unchanged="the table",
            next_step="change the table, or give the sink one of its own",
        )


def refused(
    problems: Sequence[str], path: str, next_step: str = "correct the query or the table, and start again"
) -> RowsRefused:
    return RowsRefused(
        f"The table does not take these rows: {'; '.join(problems[:10])}.",
        about=path,
        unchanged="what the table's readers see",
        next_step=next_step,
    )


def _protocol(table: DeltaTable) -> list[str]:
    protocol = table.protocol()
    if protocol.min_writer_version <= NEWEST_WITHOUT_FEATURES:
        return []
    features = {*(protocol.writer_features or []), *(protocol.reader_features or [])}
    return [f"it uses {feature}" for feature in sorted(features - FEATURES)]


def unfit_settings(settings: Mapping[str, str], *, merging: bool) -> list[str]:
    """A sentence for each setting of a table that this sink cannot respect."""
    reasons = [f"{name} is set" for name in UNFIT_SETTINGS if settings.get(name, "false").lower() == "true"]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("its columns are mapped to other names")
    if any(name.startswith("delta.constraints.") for name in settings):
        reasons.append("it has CHECK constraints")
    if "delta.setTransactionRetentionDuration" in settings:
        reasons.append("delta.setTransactionRetentionDuration makes it forget its epochs")
    if merging and settings.get("delta.appendOnly", "false").lower() == "true":
        reasons.append("delta.appendOnly forbids merging")
    return reasons


def _columns(table: DeltaTable, *, merging: bool) -> list[str]:
    fields = msgspec.json.decode(table.schema().to_json())["fields"]
    reasons = [
        f"{field['name']!r} is a computed or checked column"
        for field in fields
        if any(name in field["metadata"] for name in COMPUTED)
    ]
    kinds = {field["name"]: field["type"] for field in fields}
    for name in () if merging else table.metadata().partition_columns:
        if kinds[name] not in PARTITIONS:
            reasons.append(f"it is partitioned by {name!r}, which is {shown(kinds[name])}")
    return reasons


def invalid_arguments(message: str, about: str, next_step: str) -> Invalid:
    return Invalid(message, code="sink.delta-arguments", about=about, unchanged="everything", next_step=next_step)
