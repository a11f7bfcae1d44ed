"""The rows that are staged for an index: parquet files of keys and values, measured and read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.index.rows import KEY, VALUE

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData, ParquetFile
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
    """The length of the largest value: an upper bound unless counted exactly."""
    payload: int = 0
    """The length of all keys and values: an upper bound unless counted exactly."""


class Sizes(msgspec.Struct, frozen=True):
    """Of values, in bytes."""

    largest: int
    total: int


def count_rows(path: str, spark: SparkSession, *, exactly: bool = False) -> RowCounts:
    """Count the rows in all parquet files of a directory.

    Values are not read: the files' metadata tell how large they are at most, which is enough as long as that is less
    than an index takes. `exactly` reads them, a few at a time.
    """
    from pyarrow.parquet import ParquetFile

    with contextlib.ExitStack() as stack:
        paths = [os.path.join(path, name) for name in os.listdir(path) if name.endswith(".parquet")]
        files = [stack.enter_context(ParquetFile(file)) for file in paths]
        rows = sum(file.metadata.num_rows for file in files)
        if not rows:
            return RowCounts()
        sizes = None if exactly else _sizes_at_most([file.metadata for file in files])
        if rows <= COUNTED_HERE:
            return _count_here(files, sizes or _sizes_of(files))
    return _count_on_spark(path, spark, sizes)


def _sizes_at_most(metadata: Sequence[FileMetaData]) -> Sizes | None:
    """Upper bounds from the metadata: a value is in one row group. None if the encoding of the values does not tell."""
    groups = (one.row_group(number) for one in metadata for number in range(one.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(group.num_columns))
    values = [column for column in columns if column.path_in_schema == VALUE]
    if any(not WHOLE.issuperset(column.encodings) for column in values):
        return None
    sizes = [column.total_uncompressed_size for column in values]
    return Sizes(max(sizes, default=0), sum(sizes))


def _sizes_of(files: Iterable[ParquetFile]) -> Sizes:
    from pyarrow import compute

    largest = total = 0
    for file in files:
        for batch in file.iter_batches(_batch_rows(file), columns=[VALUE]):
            values: Any = batch.column(0)
            lengths = compute.binary_length(values).cast("int64")
            largest = max(largest, compute.max(lengths).as_py() or 0)
            total += compute.sum(lengths).as_py() or 0
    return Sizes(largest, total)


def _count_here(files: Iterable[ParquetFile], sizes: Sizes) -> RowCounts:
    import pyarrow
    from pyarrow import compute

    keys = pyarrow.concat_tables([file.read([KEY]) for file in files]).column(0)
    lengths = compute.binary_length(keys)
    distinct, longest = compute.count_distinct(keys).as_py(), compute.max(lengths).as_py() or 0
    payload = sizes.total + (compute.sum(lengths).as_py() or 0)
    return RowCounts(len(keys), keys.null_count, distinct, longest, sizes.largest, payload)


def _count_on_spark(path: str, spark: SparkSession, sizes: Sizes | None) -> RowCounts:
    from pyspark.sql import functions as f

    length = f.octet_length(KEY)
    size = f.octet_length(VALUE).cast("bigint") if sizes is None else f.lit(0).cast("bigint")
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
    rows, null, distinct, longest, of_keys, largest, of_values = (int(value or 0) for value in found)
    sizes = sizes or Sizes(largest, of_values)
    return RowCounts(rows, null, distinct, longest, sizes.largest, of_keys + sizes.total)


def staged_batches(path: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """The keys and the values of a staged file, in batches of `BATCH_ROWS` or fewer: of one row if values are large."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for batch in file.iter_batches(_batch_rows(file), columns=[KEY, VALUE]):
            yield batch.column(0).to_pylist(), batch.column(1).to_pylist()


def _batch_rows(file: ParquetFile) -> int:
    """How many rows of a file are read at a time."""
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    size = max(1, sum(group.total_byte_size for group in groups))
    return max(1, min(BATCH_ROWS, BATCH_BYTES * file.metadata.num_rows // size))
