"""A change stream of a customers table, kept up to date in PostgreSQL and in a Delta table together.

    python examples/cdc.py CHANGES DSN LAKE CHECKPOINTS    # or: holdfast run examples/cdc.py ...

CHANGES is a directory of JSON lines as change data capture writes them:
{"op": "u", "lsn": 41, "id": 7, "name": "Ada", "city": "London"}; "c" and "u" set a row, "d" deletes it. Both targets
hold the same customers after every epoch, whatever happens between the two.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from holdfast.sinks import DeltaSink, PostgresSink
from holdfast.spark import Pipeline


def last_change(changes: DataFrame) -> DataFrame:
    """An epoch may change a customer many times; the last one counts."""
    newest_first = Window.partitionBy("id").orderBy(f.col("lsn").desc())
    ranked = changes.withColumn("rank", f.row_number().over(newest_first)).where("rank = 1")
    return ranked.select("id", "name", "city", "lsn", (f.col("op") == "d").alias("deleted"))


def run(spark: SparkSession, changes: str, dsn: str, lake: str, checkpoints: str, **trigger: object) -> None:
    """Run until asked to stop, or, with `availableNow=True`, until every change that has arrived is applied."""
    pipeline = Pipeline("customers", checkpoints=checkpoints)
    stream = spark.readStream.schema("op string, lsn long, id long, name string, city string").json(changes)
    serving = PostgresSink(dsn, table="customers", key="id", delete="deleted")
    pipeline.sink("serving", serving, view=last_change)
    pipeline.sink("lake", DeltaSink(lake, key="id", delete="deleted"), view=last_change)
    pipeline.run(pipeline.source("changes", stream), trigger=trigger or "5 seconds")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("CHANGES", "DSN", "LAKE", "CHECKPOINTS"):
        parser.add_argument(name)
    given = parser.parse_args()  # before Spark starts
    run(SparkSession.builder.appName("customers").getOrCreate(), *vars(given).values())
