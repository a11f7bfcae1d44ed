"""Epochs with checkpoints, workdir and output on S3, against plain Spark there, with and without 20 ms a request.

SeaweedFS stands behind a proxy that counts requests by bucket and delays them. Each contender has a bucket of its own,
and they take turns, so that what disturbs the machine disturbs all.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.epochs import Epochs
from bench.measure import Row
from holdfast.pipeline.workdir.file_manager import SETTING
from holdfast.sinks import FileSink
from holdfast.spark import Pipeline
from holdfast.testing.faults.proxy import Fault, FaultyProxy, Request, Stall
from servers.s3 import seaweedfs_server
from sparks import FILE_MANAGERS, configured, make_session, reach_bucket

PARTITIONS = 50
KEYS = 2_000
WARM_UP, ROUNDS = 2, 4
DELAY = 0.02
USUAL = f"{FILE_MANAGERS}.FileContextBasedCheckpointFileManager"
QUICK = f"{FILE_MANAGERS}.FileSystemBasedCheckpointFileManager"


class Meter:
    """The proxy's script: counts by bucket, and delays."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.delay = 0.0

    def __call__(self, request: Request) -> Fault | None:
        self.requests[request.path.lstrip("/").partition("/")[0]] += 1
        return Stall(self.delay) if self.delay else None


class OnS3(Epochs):
    """Sums by key, with the output of every epoch in the bucket."""

    def __init__(self, spark: Any, root: Path, bucket: str) -> None:
        super().__init__(root)
        self.spark, self.bucket = spark, bucket
        self.output = f"s3a://{bucket}/out"

    def lines(self, number: int) -> Iterator[str]:
        return (json.dumps({"key": key, "amount": number}) for key in range(KEYS))

    def sums(self) -> Any:
        from pyspark.sql import functions as f

        reader = self.spark.readStream.schema("key int, amount int").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.input)).groupBy("key").agg(f.sum("amount").alias("total"))


class Plain(OnS3):
    """`foreachBatch` that writes files, with Spark's checkpoint in the bucket."""

    def __init__(self, spark: Any, root: Path, bucket: str, manager: str) -> None:
        super().__init__(spark, root, bucket)
        writer = self.sums().writeStream.outputMode("update").foreachBatch(self._write)
        with configured(spark, {SETTING: manager}):
            query = writer.option("checkpointLocation", f"s3a://{bucket}/checkpoint").start()
        self.follow(query, query.stop)

    def _write(self, frame: Any, batch_id: int) -> None:
        frame.write.mode("append").parquet(self.output)


class Ours(OnS3):
    def __init__(self, spark: Any, root: Path, bucket: str, workdir: str) -> None:
        super().__init__(spark, root, bucket)
        pipeline = Pipeline("sums", checkpoints=f"s3://{bucket}/store", workdir=workdir)
        pipeline.sink("files", FileSink(self.output))
        frame = self.sums()
        pipeline.source("in", frame)
        run: Any = pipeline.start(frame, output_mode="update")
        self.follow(run._query_run.query, run.stop)


def rows() -> Iterator[Row]:
    meter = Meter()
    with (
        tempfile.TemporaryDirectory() as folder,
        seaweedfs_server() as server,
        FaultyProxy(server.endpoint) as proxy,
    ):
        proxy.script = meter
        settings = {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.driver.memory": "2g"}
        noisy = {"spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.driver.extraJavaOptions": ""}
        spark = make_session(Path(folder, "spark"), master="local[2]", **settings, **noisy)
        spark.conf.unset(SETTING)

        def bucket(**replaced: str) -> str:
            name = server.new_bucket()
            reach_bucket(spark, name, proxy.endpoint, **replaced)
            return name

        place = Path(folder)
        contenders: dict[str, OnS3] = {
            "plain": Plain(spark, place / "plain", bucket(), USUAL),
            "tuned": Plain(spark, place / "tuned", bucket(performance_flags="*"), QUICK),
            "quick": Plain(spark, place / "quick", bucket(), QUICK),
            "ours": Ours(spark, place / "ours", bucket(), str(place / "workdir")),
        }
        remote = bucket()
        contenders["ours on s3a"] = Ours(spark, place / "remote", remote, f"s3a://{remote}/workdir")
        for delay in (0.0, DELAY):
            meter.delay = delay
            yield from _compared(contenders, meter, delay)
        for contender in contenders.values():
            contender.close()
        spark.stop()


def _compared(contenders: dict[str, OnS3], meter: Meter, delay: float) -> Iterator[Row]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    requests: dict[str, list[int]] = {name: [] for name in contenders}
    for turn in range(WARM_UP + ROUNDS):
        for name in list(contenders)[:: 1 if turn % 2 else -1]:
            before = meter.requests[contenders[name].bucket]
            seconds = contenders[name].epoch()
            if turn >= WARM_UP:
                times[name].append(seconds)
                requests[name].append(meter.requests[contenders[name].bucket] - before)
    took = {name: statistics.median(found) for name, found in times.items()}
    asked = {name: statistics.median(found) for name, found in requests.items()}
    shown = ", ".join(f"{name} {took[name]:.2f} s, {asked[name]:.0f} requests" for name in contenders)
    when = f"{delay * 1000:.0f} ms a request"

    def row(what: str, ours: str, theirs: str, most: float, values: dict[str, float] = took) -> Row:
        ratio = values[ours] / values[theirs]
        return Row(f"{what}, {when}", f"{ratio:.2f} x", f"<= {most:.2f} x", ratio <= most, shown)

    yield row("epoch on S3, local workdir, against plain Spark", "ours", "plain", 0.3 if delay else 0.8)
    if delay:
        yield row("epoch on S3, local workdir, against plain Spark tuned best", "ours", "tuned", 0.6)
        yield row("epoch with its workdir on s3a, against plain Spark", "ours on s3a", "plain", 0.45)
        yield row("the same against plain Spark with the same settings", "ours on s3a", "quick", 1.05)
        yield row("requests of the same", "ours on s3a", "quick", 1.15, asked)
