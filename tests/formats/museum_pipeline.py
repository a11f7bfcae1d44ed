"""The pipeline whose workdir is kept here: turnover per shop, into files and a Delta table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from museum import T0

from holdfast.sinks import DeltaSink, FileSink
from holdfast.spark import Pipeline
from holdfast.testing.faults.crash import Acknowledge
from sparks import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = [
    [("Graz", 100), ("Porto", 50), ("Graz", 1)],
    [("Porto", 7), ("Lyon", 30)],
    [("Graz", 1000)],
    [("Lyon", 5), ("Lyon", 6)],
]
"""One file each, one epoch each. The last one comes after the workdir was kept."""
PROVIDERS: dict[str, dict[str, str]] = {
    "hdfs": {},
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
"""Spark's settings for the two ways in which it keeps state."""
CHANGED = [
    [("Graz", 101, 2), ("Porto", 50, 1)],
    [("Lyon", 30, 1), ("Porto", 57, 2)],
    [("Graz", 1101, 3)],
    [("Lyon", 41, 3)],
]
"""What each epoch changes: shop, cents, orders."""


class Epochs:
    """An operator on the driver: how many epochs it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def snapshot(self) -> bytes:
        return b"%d" % self.seen

    def restore(self, state: bytes) -> None:
        self.seen = int(state)

    def view(self, frame: DataFrame) -> DataFrame:
        self.seen += 1
        return frame


def write_orders(place: Path, numbers: range) -> None:
    folder = place / "orders"
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        lines = [json.dumps({"shop": shop, "cents": cents}) + "\n" for shop, cents in ORDERS[number]]
        hidden = folder / f".{number}"
        hidden.write_text("".join(lines))
        os.utime(hidden, (T0 + number, T0 + number))  # the file source goes by time of change
        hidden.rename(folder / f"{number:05}.json")


def turnover(spark: SparkSession, place: Path) -> tuple[Pipeline, Epochs, Any]:
    """The pipeline, its operator and the frame to run it with."""
    from pyspark.sql import functions

    pipeline = Pipeline("turnover", checkpoints=place / "store")
    stream = spark.readStream.schema("shop string, cents long").option("maxFilesPerTrigger", 1)
    orders = pipeline.source("orders", stream.json(str(place / "orders")))
    epochs = Epochs()
    pipeline.operator("epochs", epochs)
    pipeline.sink("files", FileSink(place / "files"), view=epochs.view)
    pipeline.sink("table", DeltaSink(place / "table", key="shop"))
    summed = orders.groupBy("shop").agg(functions.sum("cents").alias("cents"), functions.count("*").alias("orders"))
    return pipeline, epochs, summed


def drive(acknowledge: Acknowledge, place: str, scratch: str, provider: str) -> None:
    """A driver in a process of its own, which the generator kills."""
    import socket

    socket.gethostname = lambda: "museum"
    spark = make_session(Path(scratch), **PROVIDERS[provider])
    pipeline, _, frame = turnover(spark, Path(place))
    pipeline.run(frame, output_mode="update", trigger={"availableNow": True})
