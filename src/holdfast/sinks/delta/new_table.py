"""What `partition_by` and `properties` ask of a new table, and what they mean for one that exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid
from holdfast.sinks.delta.table import PARTITIONS, Json, invalid_arguments, shown, unfit_settings

if TYPE_CHECKING:
    from deltalake import DeltaTable


def unfit_partitions(columns: Sequence[str], stored: list[Json]) -> Iterator[str]:
    """A sentence for each column that cannot partition a new table."""
    kinds = {field["name"]: field["type"] for field in stored}
    for name in columns:
        if name not in kinds:
            yield f"there is no column {name!r} to partition by"
        elif kinds[name] not in PARTITIONS:
            yield f"{name!r} is {shown(kinds[name])}, which cannot partition a table"
    if columns and set(columns) >= set(kinds):
        yield "there is no column besides those that partition"


def checked_properties(properties: Mapping[str, Any], path: str, *, merging: bool) -> dict[str, str]:
    """The properties of a new table; `Invalid` if the sink could not write to it, or if one is not a text."""
    odd = [f"{name} is no text" for name, value in properties.items() if not isinstance(value, str)]
    reasons = odd or unfit_settings(properties, merging=merging)
    if reasons:
        raise invalid_arguments(
            f"A table with these properties could not be written to: {'; '.join(reasons)}.",
            path,
            "correct properties=, which are texts such as 'true'",
        )
    return dict(properties)


def check_partitioning(table: DeltaTable, path: str, wanted: Sequence[str]) -> None:
    """`Invalid` if the table is partitioned in another way than `wanted`; none wanted fits every table."""
    found = table.metadata().partition_columns
    if not wanted or list(wanted) == list(found):
        return
    now = f"partitioned by {', '.join(found)}" if found else "not partitioned"
    fitting = f"partition_by={list(found)!r}" if found else "no partition_by"
    raise Invalid(
        f"This Delta table is {now}, and partition_by says {', '.join(wanted)}.",
        code="sink.delta-table",
        about=path,
        unchanged="the table",
        next_step=f"give {fitting}, or the sink a table of its own: a table cannot be partitioned anew",
    )


def other_properties(table: DeltaTable, wanted: Mapping[str, str]) -> list[str]:
    """The wanted properties that the table has not, in words."""
    found = table.metadata().configuration
    return [
        f"{name} is {found.get(name) or 'not set'} and not {value}"
        for name, value in sorted(wanted.items())
        if found.get(name) != value
    ]
