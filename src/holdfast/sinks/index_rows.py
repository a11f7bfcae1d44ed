"""The rows that are staged for an index: parquet files of keys, values and the values' sizes, measured and read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.index.rows import KEY, VALUE

if TYPE_CHECKING:
    from pyarrow import dataset
    from pyspark.sql import DataFrame, SparkSession

SIZE = "size"
"""The column of the length of each value. Files that were staged by earlier releases do not have it."""
BATCH_ROWS = 1 << 14
BATCH_BYTES = 32 << 20
"""A file is read in batches of about this size, and of at most `BATCH_ROWS`."""
COUNTED_HERE = 2_000_000
"""Up to this many rows are counted in the driver's memory; larger numbers by Spark."""


class RowCounts(msgspec.Struct, frozen=True):
    """Counts and sizes, in bytes, of staged rows."""

    rows: int = 0
    nulls: int = 0
    distinct: int = 0
    longest: int = 0
    """The length of the longest key."""
    largest: int = 0
    """The length of the largest value."""
    payload: int = 0
    """The length of all keys and values."""


def count_rows(path: str, spark: SparkSession) -> RowCounts:
    """Count the rows in all parquet files of a directory."""
    from pyarrow import dataset

    files = dataset.dataset(path, format="parquet")
    rows = files.count_rows()
    if not rows:
        return RowCounts()
    return _count_here(files, rows) if rows <= COUNTED_HERE else _count_on_spark(path, spark)


def _count_here(files: dataset.Dataset, rows: int) -> RowCounts:
    from pyarrow import compute

    keys, sizes = files.to_table(columns=[KEY, SIZE]).columns
    lengths = compute.binary_length(keys)
    distinct = compute.count_distinct(keys).as_py()
    longest, largest = (compute.max(column).as_py() or 0 for column in (lengths, sizes))
    payload = sum(compute.sum(column).as_py() or 0 for column in (lengths, sizes))
    return RowCounts(rows, keys.null_count, distinct, longest, largest, payload)


def _count_on_spark(path: str, spark: SparkSession) -> RowCounts:
    from pyspark.sql import functions as f

    length, size = f.octet_length(KEY), f.col(SIZE)
    per_key = (
        spark.read.parquet(f"file://{path}")
        .groupBy(KEY)
        .agg(f.count("*").alias("rows"), f.max(size).alias("largest"), f.sum(size).alias("values"))
    )
    nulls = f.sum(f.when(f.col(KEY).isNull(), f.col("rows")).otherwise(0))
    payload = f.coalesce(f.sum(length * f.col("rows")), f.lit(0)) + f.coalesce(f.sum("values"), f.lit(0))
    found = per_key.agg(f.sum("rows"), nulls, f.count(KEY), f.max(length), f.max("largest"), payload).first()
    assert found is not None
    return RowCounts(*(int(value or 0) for value in found))


def measured(rows: DataFrame) -> DataFrame:
    """The rows with the length of each value, so that they can be measured without reading the values again."""
    from pyspark.sql import functions as f

    return rows.withColumn(SIZE, f.octet_length(VALUE).cast("bigint"))


def staged_batches(path: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """The keys and the values of a staged file, in batches of `BATCH_ROWS` or fewer: of one row if values are large."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        size = max(1, sum(group.total_byte_size for group in groups))
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * file.metadata.num_rows // size))
        for batch in file.iter_batches(rows, columns=[KEY, VALUE]):
            yield batch.column(0).to_pylist(), batch.column(1).to_pylist()
