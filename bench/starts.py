"""Starting again on half a gigabyte of state, on a disk and on S3: against Spark alone, and against reading it once."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import holdfast
from bench.epochs import session
from bench.measure import Row
from holdfast.base.steps import observe
from holdfast.pipeline.workdir.file_manager import SETTING
from holdfast.pipeline.workdir.restore import AT_ONCE
from holdfast.pipeline.workdir.workdir import STAMPS
from holdfast.sinks import FileSink
from holdfast.spark import Pipeline, Run
from holdfast.storage.objects import open_objects
from servers.s3 import seaweedfs_server
from sparks import FILE_MANAGERS, make_session, reach_bucket

STATE_BYTES = 500_000_000
VALUE_BYTES = 1024
ROUNDS = 5
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "4",
}


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, session(Path(folder)) as spark:
        for name, value in ROCKSDB.items():
            spark.conf.set(name, value)
        ours, plain = Ours(spark, Path(folder, "ours")), Plain(spark, Path(folder, "plain"))
        ours.feed(0, STATE_BYTES // VALUE_BYTES)
        ours.run()
        # The same state and the same position in the same files.
        shutil.copytree(f"{ours.store}/workdir", plain.workdir)
        plain.input = ours.input
        yield _intact(ours, plain, "starting with an intact workdir")
    yield from _on_s3()


def _on_s3() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, seaweedfs_server() as server:
        spark = make_session(Path(folder, "spark"), master="local[2]", **{**ROCKSDB, "spark.driver.memory": "2g"})
        bucket = server.new_bucket()
        reach_bucket(spark, bucket, server.endpoint)
        spark.conf.set(SETTING, f"{FILE_MANAGERS}.FileSystemBasedCheckpointFileManager")
        ours = Ours(spark, Path(folder, "ours"), at=f"s3a://{bucket}/ours")
        plain = Plain(spark, Path(folder, "plain"), at=f"s3a://{bucket}/plain")
        plain.input = ours.input
        ours.feed(0, STATE_BYTES // VALUE_BYTES)
        for contender in (ours, plain):
            contender.run()
        yield _intact(ours, plain, "starting with the workdir on S3 after a clean end")
        yield _after_a_crash(ours, bucket, server.options)
        spark.stop()


def _after_a_crash(ours: Ours, bucket: str, options: dict[str, str]) -> Row:
    """From the call of `start` until Spark's query has begun, against reading what is restored once."""
    objects, store = open_objects(f"s3://{bucket}", options=options), holdfast.open_store(ours.store, options=options)
    filling: list[float] = []
    starting: list[float] = []
    reading: list[float] = []
    remove = observe(
        lambda name, phase, seconds: filling.append(seconds) if (name, phase) == ("workdir.fill", "end") else None
    )
    for turn in range(ROUNDS):
        objects.delete([info.key for info in objects.list("ours/workdir/") if info.key.endswith(STAMPS)])
        ours.feed(turn, turn + 10)
        began = time.perf_counter()
        run = ours.start()
        starting.append(time.perf_counter() - began)
        run.await_termination()
        newest = store.load_latest()
        assert newest is not None
        needed = [f"ours/store/{batch.key}" for batch in newest.needed_batches]
        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as readers:
            held = sum(readers.map(lambda key: sum(map(len, objects.stream(key))), needed))
        reading.append(time.perf_counter() - began)
    remove()
    mine, filled, once = statistics.median(starting), statistics.median(filling), statistics.median(reading)
    return Row(
        "starting with the workdir on S3 after a crash, against reading its checkpoint once",
        f"{mine / once:.2f} x",
        "<= 1.30 x",
        mine <= 1.3 * once,
        f"{mine:.2f} s, {filled:.2f} of them for filling the new place, against {once:.2f} s for {held / 1e6:.0f} MB",
    )


def _intact(ours: Contender, plain: Contender, what: str) -> Row:
    """One more small batch, from the start of the query to its end: what is large is the state that it finds."""
    times: dict[Contender, list[float]] = {ours: [], plain: []}
    for turn in range(ROUNDS + 1):
        ours.feed(turn, turn + 10)
        for contender in (ours, plain)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            contender.run()
            if turn:
                times[contender].append(time.perf_counter() - began)
    mine, theirs = (statistics.median(times[contender]) for contender in (ours, plain))
    ratio = mine / theirs
    return Row(
        f"{what} and 0.5 GB of RocksDB state, against Spark alone",
        f"{ratio:.2f} x",
        "<= 1.10 x",
        ratio <= 1.1,
        f"{mine:.2f} s against {theirs:.2f} s with a batch of ten keys",
    )


class Contender:
    """The newest value of each key, into files, with everything durable at one address."""

    def __init__(self, spark: Any, root: Path, at: str | None = None) -> None:
        self.spark = spark
        at = at or str(root)
        self.store, self.workdir, self.output = f"{at}/store", f"{at}/workdir", f"{at}/out"
        self.input = root / "in"
        self.input.mkdir(parents=True)
        self._fed = 0

    def feed(self, first: int, end: int) -> None:
        """One more file, which stands for the keys in a range."""
        hidden = self.input / f".{self._fed:06}"
        hidden.write_text(json.dumps({"first": first, "last": end - 1, "round": self._fed}) + "\n")
        os.rename(hidden, self.input / f"{self._fed:06}.json")
        self._fed += 1

    def frame(self) -> Any:
        from pyspark.sql import functions as f

        stream = self.spark.readStream.schema("first long, last long, round long").json(str(self.input))
        keys = stream.select(f.explode(f.sequence("first", "last")).alias("key"), "round")
        pieces = [f.unhex(f.sha2(f.concat_ws("-", "key", "round", f.lit(n)), 256)) for n in range(VALUE_BYTES // 32)]
        return keys.groupBy("key").agg(f.max(f.concat(*pieces)).alias("value"))

    def run(self) -> None:
        raise NotImplementedError


class Ours(Contender):
    def run(self) -> None:
        self.start().await_termination()

    def start(self) -> Run:
        workdir = self.workdir if "://" in self.store else None
        pipeline = Pipeline("starts", checkpoints=self.store, workdir=workdir)
        pipeline.sink("files", FileSink(self.output))
        return pipeline.start(self.frame(), output_mode="update", trigger={"availableNow": True})


class Plain(Contender):
    def run(self) -> None:
        writer = self.frame().writeStream.foreachBatch(_to(self.output)).outputMode("update")
        query = writer.option("checkpointLocation", self.workdir).trigger(availableNow=True).start()
        query.awaitTermination()


def _to(place: str) -> Callable[[Any, int], None]:
    return lambda frame, batch_id: frame.write.mode("append").parquet(place)
