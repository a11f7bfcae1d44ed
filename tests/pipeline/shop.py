"""A small shop whose orders arrive as files: input that tests of pipelines share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "shop string, amount int, at timestamp"


class Shop:
    """Orders in a folder, one file after the other, each a minute later than the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def sell(self, minutes: int = 1, orders: int = 12) -> None:
        """Add a file of orders for each of the next minutes."""
        for _ in range(minutes):
            minute = len(list(self.folder.glob("*.json")))
            lines = [
                {
                    "shop": f"shop-{number % 3}",
                    "amount": minute * 100 + number,
                    "at": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:{number:02}Z",
                }
                for number in range(orders)
            ]
            hidden = self.folder / f".{minute:04}.tmp"
            hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
            # Spark reads files in the order of their times, and those of one moment in any order.
            os.utime(hidden, (1_767_225_600 + minute,) * 2)
            os.rename(hidden, self.folder / f"{minute:04}.json")

    def orders(self, spark: SparkSession, *, files_per_trigger: int = 1) -> DataFrame:
        """The stream of orders, one file per epoch, in the order of their names."""
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_trigger)
        return reader.json(str(self.folder))


def revenue(orders: DataFrame) -> DataFrame:
    """Revenue per shop and minute."""
    from pyspark.sql import functions as f

    windows = orders.withWatermark("at", "1 minute").groupBy("shop", f.window("at", "1 minute").alias("minute"))
    summed = windows.agg(f.sum("amount").alias("revenue"), f.count("*").alias("orders"))
    return summed.select("shop", f.col("minute.start").alias("minute"), "revenue", "orders")


def rows(path: Path | str, *columns: str) -> list[tuple[Any, ...]]:
    """Everything that a reader of a FileSink's parquet files sees, sorted."""
    if not list(Path(path).glob("epoch=*")):
        return []
    table = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").to_table(columns=list(columns))
    return sorted(tuple(row[name] for name in columns) for row in table.to_pylist())
