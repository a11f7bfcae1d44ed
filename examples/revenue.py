"""Revenue per shop and minute in euros, into a directory of parquet files and a Delta table, both exactly once.

    python examples/revenue.py FOLDER          # or: holdfast run examples/revenue.py FOLDER

Orders come as JSON files in FOLDER/orders, exchange rates as FOLDER/rates/<version>.json. The demonstration
(`make demo`) runs this pipeline, kills it and damages it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.sinks import DeltaSink, FileSink
from holdfast.spark import Pipeline


def run(folder: Path, spark: SparkSession) -> None:
    """Deliver everything that has arrived, then end."""
    pipeline = Pipeline("revenue", checkpoints=folder / "checkpoints")
    orders = pipeline.source(
        "orders",
        spark.readStream.schema("shop string, currency string, amount double, at timestamp")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "orders")),
    )
    rates = pipeline.table(
        "rates",
        lambda version: spark.read.schema("currency string, euros double").json(
            str(folder / "rates" / f"{version}.json")
        ),
        version=lambda: newest_rates(folder),
    )
    pipeline.sink("files", FileSink(folder / "files"))
    pipeline.sink("delta", DeltaSink(folder / "delta", key=["shop", "minute"]))
    pipeline.run(revenue(orders, rates), output_mode="update", trigger={"availableNow": True})


def revenue(orders: DataFrame, rates: DataFrame) -> DataFrame:
    """Ordinary PySpark."""
    euros = orders.join(f.broadcast(rates), "currency").withColumn("euros", f.col("amount") * f.col("euros"))
    windows = euros.withWatermark("at", "2 minutes").groupBy("shop", f.window("at", "1 minute").alias("minute"))
    summed = windows.agg(f.round(f.sum("euros"), 2).alias("euros"), f.count("*").alias("orders"))
    return summed.select("shop", f.col("minute.start").alias("minute"), "euros", "orders")


def newest_rates(folder: Path) -> str:
    return max(path.stem for path in (folder / "rates").glob("*.json"))


def local_session() -> SparkSession:
    """Small and quiet, for one machine."""
    return (
        SparkSession.builder.appName("revenue")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("FOLDER", type=Path)
    given = parser.parse_args()  # before Spark starts
    run(given.FOLDER, local_session())
