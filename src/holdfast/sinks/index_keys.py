"""A look at the keys that were staged: whether each is there, once, and short enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.index.rows import KEY

if TYPE_CHECKING:
    from pyarrow import dataset
    from pyspark.sql import SparkSession

COUNTED_HERE = 2_000_000
"""So many keys fit easily into the driver's memory; more are counted by Spark."""


class Keys(msgspec.Struct, frozen=True):
    """What there is."""

    rows: int = 0
    nulls: int = 0
    distinct: int = 0
    longest: int = 0


def look_at_keys(path: str, spark: SparkSession) -> Keys:
    """Of all parquet files in a directory."""
    from pyarrow import dataset

    files = dataset.dataset(path, format="parquet")
    rows = files.count_rows()
    if not rows:
        return Keys()
    return _count_here(files, rows) if rows <= COUNTED_HERE else _count_on_spark(path, spark)


def _count_here(files: dataset.Dataset, rows: int) -> Keys:
    from pyarrow import compute

    keys = files.to_table(columns=[KEY]).column(0)
    longest = compute.max(compute.binary_length(keys)).as_py()
    return Keys(rows, keys.null_count, compute.count_distinct(keys).as_py(), longest or 0)


def _count_on_spark(path: str, spark: SparkSession) -> Keys:
    from pyspark.sql import functions as f

    per_key = spark.read.parquet(f"file://{path}").groupBy(KEY).agg(f.count("*").alias("rows"))
    nulls = f.sum(f.when(f.col(KEY).isNull(), f.col("rows")).otherwise(0))
    found = per_key.agg(f.sum("rows"), nulls, f.count(KEY), f.max(f.octet_length(KEY))).first()
    assert found is not None
    return Keys(*(int(value or 0) for value in found))
