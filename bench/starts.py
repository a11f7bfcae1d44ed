"""Starting again with an intact workdir: against Spark alone on the same state."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.epochs import session
from bench.measure import Row
from holdfast.sinks import FileSink
from holdfast.spark import Pipeline

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
        yield _start(spark, Path(folder))


def _start(spark: Any, folder: Path) -> Row:
    """One more small batch, from the start of the query to its end: what is large is the state that it finds."""
    ours, plain = Ours(spark, folder / "ours"), Plain(spark, folder / "plain")
    ours.feed(0, STATE_BYTES // VALUE_BYTES)
    ours.run()
    # The same state and the same position in the same files.
    shutil.copytree(folder / "ours" / "store" / "workdir", folder / "plain" / "workdir")
    plain.input = ours.input
    times: dict[Contender, list[float]] = {ours: [], plain: []}
    for turn in range(ROUNDS + 1):
        ours.feed(turn, turn + 10)
        for contender in (ours, plain)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            contender.run()
            if turn:
                times[contender].append(time.perf_counter() - began)
    held = sum(path.stat().st_size for path in (folder / "plain" / "workdir" / "state").rglob("SSTs/*.sst"))
    mine, theirs = (statistics.median(times[contender]) for contender in (ours, plain))
    ratio = mine / theirs
    return Row(
        "starting with an intact workdir and 0.5 GB of RocksDB state, against Spark alone",
        f"{ratio:.2f} x",
        "<= 1.10 x",
        ratio <= 1.1,
        f"{mine:.2f} s against {theirs:.2f} s with a batch of ten keys; {held / 1e6:.0f} MB of state files",
    )


class Contender:
    """The newest value of each key, into files."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark = spark
        self.root = root
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
        pipeline = Pipeline("starts", checkpoints=str(self.root / "store"))
        pipeline.sink("files", FileSink(self.root / "out"))
        pipeline.run(self.frame(), output_mode="update", trigger={"availableNow": True})


class Plain(Contender):
    def run(self) -> None:
        writer = self.frame().writeStream.foreachBatch(_to(self.root / "out")).outputMode("update")
        query = writer.option("checkpointLocation", str(self.root / "workdir")).trigger(availableNow=True).start()
        query.awaitTermination()


def _to(place: Path) -> Callable[[Any, int], None]:
    return lambda frame, batch_id: frame.write.mode("append").parquet(str(place))
