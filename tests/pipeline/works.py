"""Pipelines that the crash tests run in processes of their own."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from buckets import bucket_of
from orders import BEGIN, HDFS_NAMED, INDEX_NAMED, LATE_AFTER, SCHEMA

import holdfast
from holdfast.base.steps import observe
from holdfast.checkpoints.lease import current
from holdfast.errors import HoldfastError
from holdfast.pipeline.workdir import executor_probe, pack
from holdfast.sinks import Delivery, DeltaSink, FileSink, IndexSink, Sink
from holdfast.spark import EpochReport, Pipeline, watch
from holdfast.testing.faults.crash import Acknowledge
from sparks import FILE_MANAGERS, QUICK_START, java_options, make_session, reach_bucket

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

MINUTE = f"cast((unix_timestamp(window.start) - {int(BEGIN.timestamp())}) / 60 as long)"


class Session:
    """Spark in a process of its own, started quickly and ended in order."""

    def __init__(self, root: Path, provider: str, *, master: str = "local[2]", **settings: str) -> None:
        os.environ["JDK_JAVA_OPTIONS"] = QUICK_START  # for the JVM that finds out the command line, too
        if not master.startswith("local["):
            import pyspark

            settings["spark.executor.extraJavaOptions"] = java_options()
            # The tree under test, also where PYTHONPATH is relative: executors run in folders of their own.
            settings.setdefault("spark.executorEnv.PYTHONPATH", str(Path(holdfast.__file__).parents[1]))
            os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)  # its workers start executors from there
        self.spark = make_session(root / "spark", master=master, **(PROVIDERS[provider] | RESTLESS | settings))

    def end(self) -> None:
        """Stop Spark and wait for its JVM."""
        gateway: Any = self.spark.sparkContext._gateway
        self.spark.stop()
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


def revenue_pipeline(spark: Any, name: str, place: Path, orders: str) -> tuple[Pipeline, Any]:
    """Revenue per shop and minute, as changed rows into files and merged into a Delta table.

    Spark writes its own files in the way that it does for everybody, with a process here and there.
    """
    usual = f"{FILE_MANAGERS}.FileContextBasedCheckpointFileManager"
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", usual)
    pipeline = Pipeline(name, checkpoints=place / "store")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(orders)
    frame = revenue_of(pipeline.source("orders", stream))
    pipeline.sink("files", FileSink(place / "files"))
    pipeline.sink("table", DeltaSink(place / "table", key=["shop", "minute"]))
    return pipeline, frame


def remote_pipeline(spark: Any, name: str, place: Path, orders: str) -> tuple[Pipeline, Any]:
    """Revenue per shop and minute, with checkpoints, workdir and sinks in the bucket that a file there names."""
    bucket = bucket_of(place)
    reach_bucket(spark, bucket.name, bucket.endpoint)
    spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")  # which is chosen for such workdirs
    pipeline = Pipeline(name, checkpoints=f"s3://{bucket.name}/store", workdir=f"s3a://{bucket.name}/workdir")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(orders)
    frame = revenue_of(pipeline.source("orders", stream))
    pipeline.sink("files", FileSink(f"s3a://{bucket.name}/files"))
    pipeline.sink("table", DeltaSink(f"s3a://{bucket.name}/table", key=["shop", "minute"]))
    return pipeline, frame


def hdfs_pipeline(spark: Any, name: str, place: Path, orders: str) -> tuple[Pipeline, Any]:
    """Revenue per shop and minute, with everything at the address on HDFS that a file there names."""
    at = (place / HDFS_NAMED).read_text()
    spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")  # which is chosen for such workdirs
    pipeline = Pipeline(name, checkpoints=f"{at}/store", workdir=f"{at}/workdir")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(orders)
    frame = revenue_of(pipeline.source("orders", stream))
    pipeline.sink("files", FileSink(f"{at}/files"))
    return pipeline, frame


def luck_pipeline(spark: Any, name: str, place: Path, orders: str) -> tuple[Pipeline, Any]:
    """The same with a column that is another each time it is computed, appended to files and to a Delta table."""
    from pyspark.sql import functions

    # Not rand(), whose seed is part of the plan: a partition that is computed again has the same luck then.
    draw = functions.udf(lambda: random.SystemRandom().random(), "double").asNondeterministic()
    pipeline = Pipeline(name, checkpoints=place / "store")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(orders)
    frame = (
        pipeline.source("orders", stream)
        .withColumn("luck", draw())
        .withWatermark("at", f"{LATE_AFTER} seconds")
        .groupBy("shop", functions.window("at", "1 minute"))
        .agg(
            functions.sum("amount").alias("total"),
            functions.count("*").alias("orders"),
            functions.sum("luck").alias("luck"),
        )
        .select("shop", functions.expr(MINUTE).alias("minute"), "total", "orders", "luck")
    )
    pipeline.sink("files", FileSink(place / "files"))
    pipeline.sink("table", DeltaSink(place / "table"), view=lambda rows: rows.withColumn("more", functions.rand()))
    return pipeline, frame


def indexed_pipeline(spark: Any, name: str, place: Path, orders: str) -> tuple[Pipeline, Any]:
    """Revenue per shop and minute, as changed rows into files and by key into the index that a file there names.

    Without an epoch more at the end, which the other pipelines have.
    """
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    pipeline = Pipeline(name, checkpoints=place / "store")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(orders)
    frame = revenue_of(pipeline.source("orders", stream))
    pipeline.sink("files", FileSink(place / "files"))
    url = (place / INDEX_NAMED).read_text()
    pipeline.sink("index", IndexSink(url, ["shop", "minute"], staging=place / "staging"))
    return pipeline, frame


PIPELINES = {
    "revenue": revenue_pipeline,
    "remote": remote_pipeline,
    "on-hdfs": hdfs_pipeline,
    "luck": luck_pipeline,
    "indexed": indexed_pipeline,
}


def alone(
    acknowledge: Acknowledge, root: str, orders: str, work: str = "revenue", provider: str = "hdfs", **settings: str
) -> None:
    """One pipeline, from where it stands to the end of its orders. On a cluster executors pack their state."""
    place = Path(root)
    pack.LARGE = 0 if "master" in settings else pack.LARGE
    opened = Session(place, provider, **settings)
    pipeline, frame = PIPELINES[work](opened.spark, "orders", place, orders)
    watch(lambda event: acknowledge(f"epoch {event.epoch}") if isinstance(event, EpochReport) else None)
    pipeline.run(frame, output_mode="update", trigger={"availableNow": True})
    opened.end()


CLUSTER = "local-cluster[2,1,1024]"


def on_a_cluster(
    acknowledge: Acknowledge,
    root: str,
    orders: str,
    kill_executors_at: tuple[str, str, int],
    provider: str,
    works: list[str],
) -> None:
    """These pipelines, one after the other, on two executors, which also pack their state and die once in each."""
    pack.LARGE = 0
    opened = Session(Path(root), provider, master=CLUSTER)
    for work in works:
        when(*kill_executors_at, lambda: acknowledge(f"killed {len(_kill_executors())}"))
        pipeline, frame = PIPELINES[work](opened.spark, work, Path(root) / work, orders)
        pipeline.run(frame, output_mode="update", trigger={"availableNow": True})
    opened.end()


def on_disks_of_their_own(acknowledge: Acknowledge, root: str, orders: str, master: str) -> None:
    """A pipeline whose executors see another directory where the driver has the workdir."""
    executor_probe.LATE = executor_probe.PATIENCE = 120.0  # the second executor is started when the first is asked
    promised = {"spark.executor.cores": "1", "spark.cores.max": "2"}
    _run_or_tell(acknowledge, root, orders, Session(Path(root), "hdfs", master=master, **promised))


def with_another_release(acknowledge: Acknowledge, root: str, orders: str, path: str) -> None:
    """A pipeline whose executors load Holdfast from this path."""
    settings = {"spark.executorEnv.PYTHONPATH": path}
    _run_or_tell(acknowledge, root, orders, Session(Path(root), "hdfs", master=CLUSTER, **settings))


def _run_or_tell(acknowledge: Acknowledge, root: str, orders: str, opened: Session) -> None:
    pipeline, frame = PIPELINES["revenue"](opened.spark, "orders", Path(root), orders)
    try:
        pipeline.run(frame, output_mode="update", trigger={"availableNow": True}, restarts=0)
        acknowledge("ran to its end")
    except HoldfastError as error:
        acknowledge(f"{error.code}: {error.message}")
    opened.end()


def on_s3_alone(
    acknowledge: Acknowledge,
    root: str,
    master: str,
    endpoint: str,
    bucket: str,
    half: str = "",
    kill_executors_at: Any = None,
) -> None:
    """A pipeline on a cluster whose processes share nothing but a bucket, to the end of its orders.

    Before that, sinks on paths, where `half` is a directory that one of two executors shares with the driver.
    """
    pack.LARGE = 0
    promised = {"spark.executor.cores": "1", "spark.cores.max": "2"}
    opened = Session(Path(root), "rocksdb-changelog", master=master, **promised)
    reach_bucket(opened.spark, bucket, endpoint)
    opened.spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")
    opened.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    if kill_executors_at:
        when(*kill_executors_at, lambda: acknowledge(f"killed {len(_kill_executors())}"))
    if half:
        _sinks_on_paths(acknowledge, opened.spark, Path(root), bucket)
        _staged_on_paths(acknowledge, opened.spark, Path(half))
    pipeline = Pipeline("orders", checkpoints=f"s3://{bucket}/store")
    stream = opened.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"s3a://{bucket}/orders")
    pipeline.sink("files", FileSink(f"s3a://{bucket}/files"))
    frame = revenue_of(pipeline.source("orders", stream))
    pipeline.run(frame, output_mode="update", trigger={"availableNow": True})
    acknowledge(f"workdir {pipeline.workdir.address}")
    opened.end()


def _sinks_on_paths(acknowledge: Acknowledge, spark: Any, disk: Path, bucket: str) -> None:
    """Pipelines whose sinks write to a disk of the driver's."""
    schema, orders = SCHEMA, f"s3a://{bucket}/orders"
    sinks: dict[str, Sink] = {
        "files": FileSink(disk / "files"),
        "table": DeltaSink(disk / "table"),
        "index": IndexSink(f"sqlite:///{disk}/index", "shop"),
        "letters": DeltaSink(f"s3a://{bucket}/table"),
    }
    for name, sink in sinks.items():
        at_hand = name == "letters"
        checkpoints = f"{disk}/letters" if at_hand else f"s3://{bucket}/{name}"
        pipeline = Pipeline(name, checkpoints=checkpoints, workdir=f"s3a://{bucket}/workdirs/{name}")
        pipeline.sink("rows", sink, on_refused="dead-letter" if at_hand else "stop")
        rows = pipeline.source("orders", spark.readStream.schema(schema).json(orders)).select("shop", "amount")
        acknowledge(f"{name} {_refusal(pipeline.run, rows, trigger={'availableNow': True}, restarts=0)}")
        acknowledge(f"{name} claimed by {current(pipeline._store.objects)}")


def _staged_on_paths(acknowledge: Acknowledge, spark: Any, half: Path) -> None:
    """Sinks that stage where one of two executors sees what the driver does."""
    sinks: list[Sink] = [
        FileSink(half / "files", format="json"),
        DeltaSink(half / "table", partition_by="third"),
        IndexSink(f"sqlite:///{half}/index", "id"),
    ]
    rows = spark.range(0, 200, 1, 8).selectExpr("id", "id % 3 as third")
    for sink in sinks:
        sink.prepare(rows.schema, Delivery("orders", "rows", 0, 0))
        acknowledge(f"staged {_refusal(sink.stage, rows, Delivery('orders', 'rows', 0, 1, 1))}")


def _refusal(act: Callable[..., object], *arguments: Any, **named: Any) -> str:
    try:
        return f"ended: {act(*arguments, **named)}"
    except HoldfastError as error:
        return f"{error.code}: {error.message}"


def when(name: str, phase: str, nth: int, action: Callable[[], object]) -> None:
    """Do something when this process comes to an event for the nth time."""
    left = nth

    def look(seen: str, seen_phase: str, _: float) -> None:
        nonlocal left
        if (seen, seen_phase) == (name, phase):
            left -= 1
            if left == 0:
                action()

    observe(look)


def _kill_executors() -> list[int]:
    """All that this process has started, itself or through others: those of its session."""
    killed = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # gone in between
            if entry.name.isdigit() and os.getsid(int(entry.name)) == os.getsid(0):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed.append(int(entry.name))
    return killed
