"""Upserts: merges staged parquet files into a table by key, one batch at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.base.addresses import spark_address
from holdfast.sinks.delta.table import refused
from holdfast.sinks.spark_write import column_named, explain

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyarrow import RecordBatch, RecordBatchReader
    from pyspark.sql import SparkSession

BATCH_ROWS = 1 << 16
EXAMPLES = 3
Source = Callable[[], Any]
"""Opens a parquet file for pyarrow: returns a path or a file."""


def merge(
    table: DeltaTable,
    sources: Sequence[Source],
    key: Sequence[str],
    delete: str | None,
    properties: CommitProperties,
    *,
    adds_columns: bool = False,
) -> None:
    """One MERGE, streamed from parquet files: update matching rows, insert the others, delete those marked by `delete`.

    `adds_columns`: the table gets the columns that only the files have, all but `delete`. Makes no log entry if it
    changes nothing.
    """
    rows = stream(sources)
    columns = {_quoted(name): f"s.{_quoted(name)}" for name in rows.schema.names if name != delete}
    merger = table.merge(
        rows,
        " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key),
        source_alias="s",
        target_alias="t",
        merge_schema=adds_columns,
        streamed_exec=True,
        commit_properties=properties,
    )
    stays = None
    if delete is not None:
        merger = merger.when_matched_delete(f"s.{_quoted(delete)} IS TRUE")
        stays = f"s.{_quoted(delete)} IS NOT TRUE"
    merger = merger.when_matched_update(columns, predicate=stays)
    merger.when_not_matched_insert(columns, predicate=stays).execute()


def stream(sources: Sequence[Source]) -> RecordBatchReader:
    """All rows of parquet files of one schema, read a batch at a time as the merge needs them."""
    from pyarrow import RecordBatchReader
    from pyarrow.parquet import ParquetFile

    def batches() -> Iterator[RecordBatch]:
        for opened in sources:
            with ParquetFile(opened()) as file:
                yield from file.iter_batches(BATCH_ROWS)

    with ParquetFile(sources[0]()) as first:
        return RecordBatchReader.from_batches(first.schema_arrow, batches())


def refuse_ambiguous_keys(session: SparkSession, data: str, key: Sequence[str]) -> None:
    """`RowsRefused` if a key occurs twice or is null. One Spark job on the key columns of the staged files.

    delta-rs would insert two new rows with one key, or fail if two rows match one: only after the epoch is decided.
    """
    from pyspark.sql import functions

    keys = [column_named(name) for name in key]
    null = functions.lit(False)
    for column in keys:
        null = null | column.isNull()
    try:
        found = (
            session.read.parquet(_without_globs(spark_address(data)))
            .groupBy(*keys)
            .count()
            .where(null | (functions.col("count") > 1))
            .limit(EXAMPLES)
            .collect()
        )
    except Exception as error:
        explained = explain(error, data)
        if explained is None:
            raise
        raise explained from error
    if found:
        shown = ", ".join("(" + ", ".join(f"{value!r:.50}" for value in row[:-1]) + ")" for row in found)
        what = "has a null" if any(None in row[:-1] for row in found) else "is there more than once"
        raise refused([f"a key {what}: {', '.join(key)} = {shown}"], os.path.dirname(data))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _without_globs(path: str) -> str:
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
