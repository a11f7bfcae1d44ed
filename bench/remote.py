"""Epochs with checkpoints, workdir and output on S3, against plain Spark there, with and without 20 ms a request.

SeaweedFS stands behind a proxy that counts requests by bucket and delays them. Each contender has a bucket of its own,
and they take turns, so that what disturbs the machine disturbs all.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.epochs import Epochs
from bench.measure import Row
from holdfast.pipeline.workdir.file_manager import SETTING
from holdfast.sinks import FileSink
from holdfast.spark import Pipeline
from holdfast.testing.faults.proxy import Fault, FaultyProxy, Request, Stall
from servers.s3 import seaweedfs_server
from servers.spark_cluster import spark_cluster
from sparks import FILE_MANAGERS, configured, make_session, reach_bucket

PARTITIONS = 50
KEYS = 2_000
WARM_UP, ROUNDS = 2, 4
DELAY = 0.02
OUTPUT = "out"
USUAL = f"{FILE_MANAGERS}.FileContextBasedCheckpointFileManager"
QUICK = f"{FILE_MANAGERS}.FileSystemBasedCheckpointFileManager"


class Meter:
    """The proxy's script: counts by bucket, those for checkpointing apart from those for output, and delays."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.checkpointing: Counter[str] = Counter()
        self.delay = 0.0

    def __call__(self, request: Request) -> Fault | None:
        bucket, _, key = urllib.parse.unquote(request.path).lstrip("/").partition("/")
        self.requests[bucket] += 1
        # A deletion of many keys does not say which: it counts where it makes ours look worse.
        is_output = (key or request.query.get("prefix", "")).startswith(OUTPUT)
        self.checkpointing[bucket] += not is_output
        return Stall(self.delay) if self.delay else None


class OnS3(Epochs):
    """Sums by key, with the output of every epoch in the bucket."""

    def __init__(self, spark: Any, root: Path, bucket: str) -> None:
        super().__init__(root)
        self.spark, self.bucket = spark, bucket
        self.output = f"s3a://{bucket}/{OUTPUT}"

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
    with (
        tempfile.TemporaryDirectory() as folder,
        seaweedfs_server() as server,
        FaultyProxy(server.endpoint) as proxy,
    ):
        bench = _Bench(Path(folder), server, proxy)
        yield from bench.on_one_machine()
        with spark_cluster() as cluster:
            for _ in range(2):
                cluster.add_worker()
            yield from bench.on_a_cluster(cluster.master)


class _Bench:
    def __init__(self, place: Path, server: Any, proxy: FaultyProxy) -> None:
        self._place, self._server, self._proxy = place, server, proxy
        self._meter = proxy.script = Meter()

    def on_one_machine(self) -> Iterator[Row]:
        spark, place = self._session("local[2]"), self._place / "one"
        contenders: dict[str, OnS3] = {
            "plain": Plain(spark, place / "plain", self._bucket(spark), USUAL),
            "tuned": Plain(spark, place / "tuned", self._bucket(spark, performance_flags="*"), QUICK),
            "ours": Ours(spark, place / "ours", self._bucket(spark), str(place / "workdir")),
        }
        for when, seconds, requests in self._measured(contenders):
            limit = 0.3 if when.delay else 0.8
            yield when.row("epoch on S3, local workdir, against plain Spark", seconds, "ours", "plain", limit)
            yield when.row("requests for checkpointing of the same", requests, "ours", "plain", 0.01, digits=3)
            if when.delay:
                what = "epoch on S3, local workdir, against plain Spark tuned best"
                yield when.row(what, seconds, "ours", "tuned", 0.6)
        spark.stop()

    def on_a_cluster(self, master: str) -> Iterator[Row]:
        spark, place = self._session(master), self._place / "cluster"
        own = self._bucket(spark)
        contenders: dict[str, OnS3] = {
            "plain": Plain(spark, place / "plain", self._bucket(spark), USUAL),
            "quick": Plain(spark, place / "quick", self._bucket(spark), QUICK),
            "ours": Ours(spark, place / "ours", own, f"s3a://{own}/workdir"),
        }
        for when, seconds, requests in self._measured(contenders):
            if when.delay:
                what = "epoch on a cluster, workdir on s3a, against plain Spark"
                yield when.row(what, seconds, "ours", "plain", 0.45)
                what = "the same against plain Spark with the same settings"
                yield when.row(what, seconds, "ours", "quick", 1.05)
                yield when.row("requests for checkpointing of the same", requests, "ours", "quick", 1.15)
        spark.stop()

    def _session(self, master: str) -> Any:
        settings = {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.driver.memory": "2g"}
        quiet = {"spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.driver.extraJavaOptions": ""}
        spark = make_session(self._place / "spark", master=master, **settings, **quiet)
        spark.conf.unset(SETTING)
        return spark

    def _bucket(self, spark: Any, **replaced: str) -> str:
        name = self._server.new_bucket()
        reach_bucket(spark, name, self._proxy.endpoint, **replaced)
        return str(name)

    def _measured(self, contenders: dict[str, OnS3]) -> Iterator[tuple[When, dict[str, float], dict[str, float]]]:
        """Per delay the seconds and the requests for checkpointing of an epoch of each, which take turns."""
        for self._meter.delay in (0.0, DELAY):
            times: dict[str, list[float]] = {name: [] for name in contenders}
            asked: dict[str, list[int]] = {name: [] for name in contenders}
            in_all: dict[str, list[int]] = {name: [] for name in contenders}
            for turn in range(WARM_UP + ROUNDS):
                for name in list(contenders)[:: 1 if turn % 2 else -1]:
                    bucket = contenders[name].bucket
                    before = self._meter.checkpointing[bucket], self._meter.requests[bucket]
                    seconds = contenders[name].epoch()
                    if turn >= WARM_UP:
                        times[name].append(seconds)
                        asked[name].append(self._meter.checkpointing[bucket] - before[0])
                        in_all[name].append(self._meter.requests[bucket] - before[1])
            took = {name: statistics.median(found) for name, found in times.items()}
            requests = {name: statistics.mean(found) for name, found in asked.items()}
            shown = ", ".join(
                f"{name} {took[name]:.2f} s, {requests[name]:.0f} of {statistics.mean(in_all[name]):.0f} requests"
                for name in contenders
            )
            yield When(self._meter.delay, shown), took, requests
        for contender in contenders.values():
            contender.close()


class When(msgspec.Struct, frozen=True):
    """The delay of a request, in seconds, and everything that was measured with it."""

    delay: float
    shown: str

    def row(self, what: str, values: dict[str, float], ours: str, theirs: str, most: float, *, digits: int = 2) -> Row:
        ratio = values[ours] / values[theirs]
        where = f"{what}, {self.delay * 1000:.0f} ms a request"
        return Row(where, f"{ratio:.{digits}f} x", f"<= {most:.2f} x", ratio <= most, self.shown)
