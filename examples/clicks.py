"""Clicks into sessions: what a visitor did until a pause of half an hour, one row per session, as parquet files.

    python examples/clicks.py CLICKS OUT CHECKPOINTS       # or: holdfast run examples/clicks.py ...

CLICKS is a directory of JSON lines such as {"visitor": "v7", "page": "/cart", "at": "2026-01-01T09:00:00Z"}. A session
is written once it is certain that nothing can be added to it: ten minutes of event time after it has ended.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdfast.sinks import FileSink
from holdfast.spark import Pipeline


def sessions(clicks: DataFrame) -> DataFrame:
    """One row per visitor and session."""
    visits = clicks.withWatermark("at", "10 minutes").groupBy("visitor", f.session_window("at", "30 minutes"))
    counted = visits.agg(f.count("*").alias("clicks"), f.array_sort(f.collect_set("page")).alias("pages"))
    return counted.select(
        "visitor",
        f.col("session_window.start").alias("began"),
        f.col("session_window.end").alias("ended"),
        "clicks",
        "pages",
    )


def run(spark: SparkSession, clicks: str, out: str, checkpoints: str, **trigger: object) -> None:
    """Run until asked to stop, or, with `availableNow=True`, until everything that has arrived is written."""
    pipeline = Pipeline("sessions", checkpoints=checkpoints)
    stream = spark.readStream.schema("visitor string, page string, at timestamp").json(clicks)
    pipeline.sink("parquet", FileSink(out))
    pipeline.run(
        sessions(pipeline.source("clicks", stream)),
        output_mode="append",
        trigger=trigger or "10 seconds",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("CLICKS", "OUT", "CHECKPOINTS"):
        parser.add_argument(name)
    given = parser.parse_args()  # before Spark starts
    run(SparkSession.builder.appName("sessions").getOrCreate(), *vars(given).values())
