"""Which tables can be written to: a file added to the log goes round every check that a table may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Invalid
from holdfast.sinks.delta.table import PARTITIONS, shown
from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Of tables that list their features. Each asks nothing of who adds files, or is looked into below.
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
COMPUTED = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


def check_table(table: DeltaTable, path: str, *, merging: bool) -> None:
    """`Invalid` for a table whose rules could not be kept."""
    reasons = _protocol(table) + _settings(table, merging=merging) + _columns(table, merging=merging)
    if reasons:
        raise Invalid(
            f"This Delta table cannot be written to: {'; '.join(reasons)}.",
            code="sink.delta-table",
            about=path,
            unchanged="the table",
            next_step="change the table, or give the sink one of its own",
        )


def refused(problems: Sequence[str], path: str) -> RowsRefused:
    return RowsRefused(
        f"The table does not take these rows: {'; '.join(problems[:10])}.",
        about=path,
        unchanged="what the table's readers see",
        next_step="correct the query or the table, and start again",
    )


def _protocol(table: DeltaTable) -> list[str]:
    protocol = table.protocol()
    if protocol.min_writer_version <= NEWEST_WITHOUT_FEATURES:
        return []
    features = {*(protocol.writer_features or []), *(protocol.reader_features or [])}
    return [f"it uses {feature}" for feature in sorted(features - FEATURES)]


def _settings(table: DeltaTable, *, merging: bool) -> list[str]:
    settings = table.metadata().configuration
    reasons = []
    if settings.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("its columns are mapped to other names")
    if any(name.startswith("delta.constraints.") for name in settings):
        reasons.append("it has CHECK constraints")
    if "delta.setTransactionRetentionDuration" in settings:
        reasons.append("delta.setTransactionRetentionDuration lets it forget which epochs it has")
    if merging and settings.get("delta.appendOnly", "false").lower() == "true":
        reasons.append("delta.appendOnly forbids to merge")
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
