"""Pipelines that the crash tests run in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orders import BEGIN, LATE_AFTER, SCHEMA

from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.files import FileSink
from holdfast.spark import EpochReport, Pipeline, watch
from holdfast.testing.crash import Acknowledge
from sparks import make_session

_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
_CHANGELOG = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}

PROVIDERS: dict[str, dict[str, str]] = {
    "hdfs": {},
    "rocksdb": _ROCKSDB,
    "rocksdb-changelog": _ROCKSDB | _CHANGELOG,
    "rocksdb-v2": _ROCKSDB | _CHANGELOG | {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"},
}

RESTLESS = {
    # Spark's own housekeeping at its busiest: snapshots, compactions and removals between any two epochs.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
}

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half the time for a JVM that lives for seconds."""

MINUTE = f"cast((unix_timestamp(window.start) - {int(BEGIN.timestamp())}) / 60 as long)"


def session_for(root: Path, provider: str, archive: str | None, **settings: str) -> Any:
    """A session in a process of its own. `archive`: classes that an earlier JVM has loaded; made if it is not there."""
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_START  # for the JVM that finds out the command line, too
    if archive is not None:
        use = "SharedArchiveFile" if os.path.exists(archive) else "ArchiveClassesAtExit"
        settings["spark.driver.extraJavaOptions"] = f"-XX:{use}={archive}"
    return make_session(root / "spark", **(PROVIDERS[provider] | RESTLESS | settings))


def end(session: Any) -> None:
    """Stop Spark and wait for its JVM, which may have classes to archive."""
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def revenue_of(orders: Any) -> Any:
    """Revenue per shop and minute."""
    from pyspark.sql import functions

    return (
        orders.withWatermark("at", f"{LATE_AFTER} seconds")
        .groupBy("shop", functions.window("at", "1 minute"))
        .agg(functions.sum("amount").alias("total"), functions.count("*").alias("orders"))
        .select("shop", functions.expr(MINUTE).alias("minute"), "total", "orders")
    )


def revenue(
    acknowledge: Acknowledge, root: str, orders: str, provider: str = "hdfs", archive: str | None = None
) -> None:
    """Revenue per shop and minute, as changed rows into files and merged into a Delta table."""
    place = Path(root)
    session = session_for(place, provider, archive)
    pipeline = Pipeline("orders", checkpoints=place / "store")
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(orders)
    frame = revenue_of(pipeline.source("orders", stream))
    pipeline.sink("files", FileSink(place / "files"))
    pipeline.sink("table", DeltaSink(place / "table", key=["shop", "minute"]))
    watch(lambda event: acknowledge(f"epoch {event.epoch}") if isinstance(event, EpochReport) else None)
    pipeline.run(frame, output_mode="update", trigger={"availableNow": True})
    end(session)
