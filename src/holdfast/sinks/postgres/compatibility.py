"""Whether a frame fits a table, and whether the merge must be tried out first. Pure: no request to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.sinks.postgres.table import (
    ATTEMPT,
    DELETED,
    LONGEST,
    CatalogColumn,
    CatalogIndex,
    CatalogTable,
    TableName,
    quoted,
)
from holdfast.sinks.postgres.target import RowKey
from holdfast.sinks.postgres.types import new_column, why_not
from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TABLES = "rp"  # ordinary and partitioned: a view or a foreign table is not covered by one transaction


def check_frame(schema: StructType, row_key: RowKey) -> None:
    """`RowsRefused` for a frame that no table could take."""
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
            raise RowsRefused(f"Column {name!r} has a name that is reserved for staging.", next_step="rename it")
    for name in row_key.columns:
        if name not in names:
            raise RowsRefused(f"The key column {name!r} is not in the frame, which has {_listed(names)}.")
    if row_key.delete is not None:
        flag = next((field for field in schema.fields if field.name == row_key.delete), None)
        if flag is None or type(flag.dataType).__name__ != "BooleanType":
            what = "is not in the frame" if flag is None else f"is {flag.dataType.simpleString()}, not boolean"
            raise RowsRefused(f"The column {row_key.delete!r}, which marks the rows that delete, {what}.")


def new_table_columns(schema: StructType, row_key: RowKey) -> list[tuple[str, str]]:
    """The column names and types of a new table for the frame."""
    columns = []
    for field in schema.fields:
        if field.name == row_key.delete:
            continue
        written = new_column(field.dataType)
        if written is None:
            raise RowsRefused(
                f"Column {field.name!r} is {field.dataType.simpleString()}, which has no known PostgreSQL type.",
                next_step=f'cast it, for instance to string, or drop it: frame.drop("{field.name}")',
            )
        columns.append((field.name, written))
    return columns


def check_table(catalog: CatalogTable, schema: StructType, row_key: RowKey) -> None:
    """`RowsRefused` if the table does not take such rows; `Invalid` if it cannot take rows exactly once."""
    table = catalog.table
    _check_kind(catalog)
    given = {field.name for field in schema.fields if field.name != row_key.delete}
    if row_key.delete is not None and catalog.column(row_key.delete) is not None:
        raise RowsRefused(
            f"{row_key.delete!r} marks the rows that delete, and is a column of the target as well.",
            about=str(table),
            next_step=f"ALTER TABLE {table} DROP COLUMN {quoted(row_key.delete)}, or rename it in the frame",
        )
    for field in schema.fields:
        if field.name == row_key.delete:
            continue
        column = catalog.column(field.name)
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
    for column in catalog.columns:
        if column.required and not column.has_default and column.name not in given and column.generated is None:
            raise RowsRefused(
                f"Column {column.name!r} of the target is NOT NULL and has no default, and the frame lacks it.",
                about=str(table),
                next_step=f"add it to the frame, or ALTER TABLE {table} ALTER {quoted(column.name)} SET DEFAULT …",
            )
    if row_key.columns and catalog.key_index(row_key.columns) is None:
        raise RowsRefused(
            f"The target has no unique index on exactly the key, {_listed(row_key.columns)}, that ON CONFLICT can use.",
            about=str(table),
            next_step=f"CREATE UNIQUE INDEX ON {table} ({', '.join(map(quoted, row_key.columns))})",
        )


def _check_kind(catalog: CatalogTable) -> None:
    table: TableName = catalog.table
    if catalog.kind not in _TABLES:
        raise Invalid(
            "The target is not a table: a view or a foreign table is not covered by one transaction of this server.",
            about=str(table),
            next_step="name an ordinary or a partitioned table",
        )
    if not catalog.logged:
        raise Invalid(
            "The target, or a partition of it, is unlogged or foreign: a crash would empty it and keep the commits.",
            about=str(table),
            next_step=f"ALTER TABLE {table} SET LOGGED",
        )
    if catalog.rules:
        raise Invalid(
            "The target has rules, which can discard rows or send them elsewhere.",
            about=str(table),
            next_step="replace the rules by triggers",
        )


def needs_trial(catalog: CatalogTable, written: set[str], row_key: RowKey) -> list[str]:
    """Properties of the table that can make it refuse rows in ways that only inserting them shows.

    Then the merge is tried out and rolled back before the epoch is decided. Empty if a query on the staged rows finds
    everything that could be refused.
    """
    numbers = {column.number for column in catalog.columns if column.name in written}
    facts = {
        "it is partitioned": catalog.kind == "p",
        "it has row security": catalog.row_security,
        "it has triggers": catalog.triggers,
        "it has foreign keys": catalog.refers,
        "foreign keys refer to it": catalog.referred and row_key.delete is not None,
        "it has exclusion constraints": catalog.exclusions,
        "it has generated columns": any(column.generated == "a generated column" for column in catalog.columns),
        "it has columns of a domain": any(column.domain for column in catalog.columns if column.name in written),
        "it has unique indexes besides the key": bool(_other_unique(catalog, numbers, row_key)),
        "it has indexes on expressions or with conditions": any(not index.plain for index in catalog.indexes),
        "it checks columns that the frame lacks": any(not check.columns <= numbers for check in catalog.checks),
    }
    return [fact for fact, holds in facts.items() if holds]


def _other_unique(catalog: CatalogTable, written: set[int], row_key: RowKey) -> list[CatalogIndex]:
    numbered = {column.number for column in catalog.columns if column.numbered} - written
    key = catalog.key_index(row_key.columns) if row_key.columns else None
    unique = [index for index in catalog.indexes if index.unique and index != key]
    return [index for index in unique if not (index.plain and set(index.columns) <= numbered)]


def indexed(catalog: CatalogTable, written: set[str]) -> list[CatalogColumn]:
    """The written columns whose values could be too long for an index on them."""
    numbers = {number for index in catalog.indexes for number in index.columns}
    return [c for c in catalog.columns if c.name in written and c.number in numbers and c.type.varies]


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
