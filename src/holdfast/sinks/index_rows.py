"""The rows that are staged for an index: parquet files of keys and values, measured and read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.index.rows import KEY, VALUE

if TYPE_CHECKING:
    from pyarrow import Table
    from pyarrow.parquet import FileMetaData
    from pyspark.sql import SparkSession

BATCH_ROWS = 1 << 14
BATCH_BYTES = 32 << 20
"""A file is read in batches of about this size, and of at most `BATCH_ROWS`."""
COUNTED_HERE = 2_000_000
"""Up to this many rows are counted in the driver's memory; larger numbers by Spark."""
WHOLE = {"PLAIN", "RLE", "BIT_PACKED"}
"""Encodings by which a column chunk holds every byte of its values."""


class RowCounts(msgspec.Struct, frozen=True):
    """Counts and sizes, in bytes, of staged rows."""

    rows: int = 0
    nulls: int = 0
    distinct: int = 0
    longest: int = 0
    """The length of the longest key."""
    largest: int = 0
    """The length of the largest value, or a little more than all values together."""
    payload: int = 0
    """The length of all keys and values, or a little more."""


def count_rows(path: str, spark: SparkSession, *, exactly: bool = False) -> RowCounts:
    """Count the rows in all parquet files of a directory.

    Values are not read: the files' metadata tell how large they are at most, which is enough as long as that is less
    than an index takes. `exactly` reads them.
    """
    from pyarrow.parquet import ParquetFile

    with contextlib.ExitStack() as stack:
        paths = [os.path.join(path, name) for name in os.listdir(path) if name.endswith(".parquet")]
        files = [stack.enter_context(ParquetFile(file)) for file in paths]
        rows = sum(file.metadata.num_rows for file in files)
        if not rows:
            return RowCounts()
        values = None if exactly else _size_at_most([file.metadata for file in files])
        if rows <= COUNTED_HERE:
            columns = [KEY] if values is not None else [KEY, VALUE]
            return _count_here([file.read(columns) for file in files], values)
    return _count_on_spark(path, spark, values)


def _size_at_most(metadata: Sequence[FileMetaData]) -> int | None:
    """More bytes than all values have together; None if their encoding does not tell."""
    groups = (one.row_group(number) for one in metadata for number in range(one.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(group.num_columns))
    values = [column for column in columns if column.path_in_schema == VALUE]
    if any(not WHOLE.issuperset(column.encodings) for column in values):
        return None
    return sum(column.total_uncompressed_size for column in values)


def _count_here(tables: list[Table], values: int | None) -> RowCounts:
    import pyarrow
    from pyarrow import compute

    table = pyarrow.concat_tables(tables)
    keys = table.column(KEY)
    lengths = compute.binary_length(keys)
    largest = payload = values or 0
    if values is None:
        sizes = compute.binary_length(table.column(VALUE)).cast("int64")
        largest, payload = compute.max(sizes).as_py() or 0, compute.sum(sizes).as_py() or 0
    payload += compute.sum(lengths).as_py() or 0
    distinct, longest = compute.count_distinct(keys).as_py(), compute.max(lengths).as_py() or 0
    return RowCounts(table.num_rows, keys.null_count, distinct, longest, largest, payload)


def _count_on_spark(path: str, spark: SparkSession, values: int | None) -> RowCounts:
    from pyspark.sql import functions as f

    length = f.octet_length(KEY)
    size = f.octet_length(VALUE).cast("bigint") if values is None else f.lit(0).cast("bigint")
    per_key = (
        spark.read.parquet(f"file://{path}")
        .groupBy(KEY)
        .agg(f.count("*").alias("rows"), f.max(size).alias("largest"), f.sum(size).alias("values"))
    )
    nulls = f.sum(f.when(f.col(KEY).isNull(), f.col("rows")).otherwise(0))
    keys = f.sum(length * f.col("rows"))
    counted = per_key.agg(f.sum("rows"), nulls, f.count(KEY), f.max(length), keys, f.max("largest"), f.sum("values"))
    found = counted.first()
    assert found is not None
    rows, null, distinct, longest, keys_size, largest, values_size = (int(value or 0) for value in found)
    if values is not None:
        largest = values_size = values
    return RowCounts(rows, null, distinct, longest, largest, keys_size + values_size)


def staged_batches(path: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """The keys and the values of a staged file, in batches of `BATCH_ROWS` or fewer: of one row if values are large."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        size = max(1, sum(group.total_byte_size for group in groups))
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * file.metadata.num_rows // size))
        for batch in file.iter_batches(rows, columns=[KEY, VALUE]):
            yield batch.column(0).to_pylist(), batch.column(1).to_pylist()
