"""Readings of sensors that report late, summed up per five minutes and written once, when each window is complete.

    python examples/sensors.py READINGS OUT CHECKPOINTS    # or: holdfast run examples/sensors.py ...

READINGS is a directory of JSON lines such as {"sensor": "s1", "celsius": 20.5, "at": "2026-01-01T09:00:00Z"}. A reading
may come up to fifteen minutes late; one that comes later is too late for its window, and Spark leaves it out.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.sinks import FileSink
from holdfast.spark import Pipeline


def five_minutes(readings: DataFrame) -> DataFrame:
    """The least, the mean and the most of each sensor's five minutes; a reading that was sent twice counts once."""
    distinct = readings.withWatermark("at", "15 minutes").dropDuplicatesWithinWatermark(["sensor", "at"])
    windows = distinct.groupBy("sensor", f.window("at", "5 minutes"))
    summed = windows.agg(
        f.min("celsius").alias("least"),
        f.round(f.avg("celsius"), 3).alias("mean"),
        f.max("celsius").alias("most"),
        f.count("*").alias("readings"),
    )
    return summed.select("sensor", f.col("window.start").alias("since"), "least", "mean", "most", "readings")


def run(spark: SparkSession, readings: str, out: str, checkpoints: str, **trigger: object) -> None:
    """Run until asked to stop, or, with `availableNow=True`, until everything that has arrived is written."""
    pipeline = Pipeline("sensors", checkpoints=checkpoints)
    stream = spark.readStream.schema("sensor string, celsius double, at timestamp").json(readings)
    pipeline.sink("parquet", FileSink(out))
    pipeline.run(
        five_minutes(pipeline.source("readings", stream)),
        output_mode="append",
        trigger=trigger or "1 minute",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("READINGS", "OUT", "CHECKPOINTS"):
        parser.add_argument(name)
    given = parser.parse_args()  # before Spark starts
    run(SparkSession.builder.appName("sensors").getOrCreate(), *vars(given).values())
