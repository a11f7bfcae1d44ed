"""Whether a frame and a target fit together, and what has to be tried out. Pure: no server is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.sinks.postgres.table import ATTEMPT, DELETED, LONGEST, Column, Index, TableName, Target, quoted
from holdfast.sinks.postgres.target import Shape
from holdfast.sinks.postgres.types import new_column, why_not
from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TABLES = "rp"  # ordinary and partitioned: a view or a foreign table is not covered by our one transaction


def check_frame(schema: StructType, shape: Shape) -> None:
    """Refuse a frame that no table could take."""
    names = [field.name for field in schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise RowsRefused(f"The frame has two columns named {name!r}.", next_step="rename one of them")
        if not name or "\0" in name or len(name.encode()) > LONGEST:
            raise RowsRefused(
                f"Column {name!r} has a name that PostgreSQL cannot keep: it takes 1 to {LONGEST} bytes, and no NUL.",
                next_step=f'frame.withColumnRenamed("{name[:20]}…", …)',
            )
        if name in {ATTEMPT, DELETED}:
            raise RowsRefused(f"Column {name!r} has a name that staging needs for itself.", next_step="rename it")
    for name in shape.key:
        if name not in names:
            raise RowsRefused(f"The key column {name!r} is not in the frame, which has {_listed(names)}.")
    if shape.delete is not None:
        flag = next((field for field in schema.fields if field.name == shape.delete), None)
        if flag is None or type(flag.dataType).__name__ != "BooleanType":
            what = "is not in the frame" if flag is None else f"is {flag.dataType.simpleString()}, not boolean"
            raise RowsRefused(f"The column {shape.delete!r}, which says what to delete, {what}.")


def new_table_columns(schema: StructType, shape: Shape) -> list[tuple[str, str]]:
    """Names and types of a table made for the frame."""
    columns = []
    for field in schema.fields:
        if field.name == shape.delete:
            continue
        written = new_column(field.dataType)
        if written is None:
            raise RowsRefused(
                f"Column {field.name!r} is {field.dataType.simpleString()}, for which PostgreSQL has no type we know.",
                next_step=f'cast it, for instance to string, or drop it: frame.drop("{field.name}")',
            )
        columns.append((field.name, written))
    return columns


def check_target(target: Target, schema: StructType, shape: Shape) -> None:
    """Refuse a target that could not take such a frame, or not exactly once."""
    table = target.table
    _check_kind(target)
    given = {field.name for field in schema.fields if field.name != shape.delete}
    if shape.delete is not None and target.column(shape.delete) is not None:
        raise RowsRefused(
            f"{shape.delete!r} says what to delete, and is a column of the target as well.",
            about=str(table),
            next_step=f"ALTER TABLE {table} DROP COLUMN {quoted(shape.delete)}, or rename it in the frame",
        )
    for field in schema.fields:
        if field.name == shape.delete:
            continue
        column = target.column(field.name)
        if column is None:
            written = new_column(field.dataType) or "…"
            raise RowsRefused(
                f"The target has no column {field.name!r}.",
                about=str(table),
                next_step=f"ALTER TABLE {table} ADD COLUMN {quoted(field.name)} {written}, or drop it from the frame",
            )
        if column.generated is not None:
            raise RowsRefused(
                f"Column {field.name!r} is {column.generated}: it takes no values.",
                about=str(table),
                next_step=f'leave it out: frame.drop("{field.name}")',
            )
        reason = why_not(field.dataType, column.type)
        if reason is not None:
            raise RowsRefused(
                f"Column {field.name!r}: {reason}.",
                about=str(table),
                next_step="cast it in the frame, or change the column's type",
            )
    for column in target.columns:
        if column.required and not column.has_default and column.name not in given and column.generated is None:
            raise RowsRefused(
                f"Column {column.name!r} of the target is NOT NULL and has no default, and the frame lacks it.",
                about=str(table),
                next_step=f"add it to the frame, or ALTER TABLE {table} ALTER {quoted(column.name)} SET DEFAULT …",
            )
    if shape.key and target.key_index(shape.key) is None:
        raise RowsRefused(
            f"The target has no unique index on exactly the key, {_listed(shape.key)}, that ON CONFLICT can use.",
            about=str(table),
            next_step=f"CREATE UNIQUE INDEX ON {table} ({', '.join(map(quoted, shape.key))})",
        )


def _check_kind(target: Target) -> None:
    table: TableName = target.table
    if target.kind not in _TABLES:
        raise Invalid(
            "It is not a table: a view, a foreign table or the like is not covered by one transaction of this server.",
            about=str(table),
            next_step="name an ordinary or a partitioned table",
        )
    if not target.logged:
        raise Invalid(
            "The target, or a partition of it, is unlogged or foreign: a crash would empty it and keep the commits.",
            about=str(table),
            next_step=f"ALTER TABLE {table} SET LOGGED",
        )
    if target.rules:
        raise Invalid(
            "The target has rules, which can discard rows or send them elsewhere.",
            about=str(table),
            next_step="replace the rules by triggers",
        )


def needs_trial(target: Target, written: set[str], shape: Shape) -> list[str]:
    """What of the target only shows when rows really go in, so that they are put in, and taken back, before the epoch
    is decided. Empty if a look at the staged rows finds everything that could be refused.
    """
    numbers = {column.number for column in target.columns if column.name in written}
    facts = {
        "it is partitioned": target.kind == "p",
        "it has row security": target.row_security,
        "it has triggers": target.triggers,
        "it has foreign keys": target.refers,
        "foreign keys refer to it": target.referred and shape.delete is not None,
        "it has exclusion constraints": target.exclusions,
        "it has generated columns": any(column.generated == "a generated column" for column in target.columns),
        "it has columns of a domain": any(column.domain for column in target.columns if column.name in written),
        "it has unique indexes besides the key": bool(_other_unique(target, numbers, shape)),
        "it has indexes on expressions or with conditions": any(not index.plain for index in target.indexes),
        "it checks columns that the frame lacks": any(not check.columns <= numbers for check in target.checks),
    }
    return [fact for fact, holds in facts.items() if holds]


def _other_unique(target: Target, written: set[int], shape: Shape) -> list[Index]:
    numbered = {column.number for column in target.columns if column.numbered} - written
    key = target.key_index(shape.key) if shape.key else None
    unique = [index for index in target.indexes if index.unique and index != key]
    return [index for index in unique if not (index.plain and set(index.columns) <= numbered)]


def indexed(target: Target, written: set[str]) -> list[Column]:
    """The columns we write whose values could be too long for an index of theirs."""
    numbers = {number for index in target.indexes for number in index.columns}
    return [c for c in target.columns if c.name in written and c.number in numbers and c.type.varies]


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
