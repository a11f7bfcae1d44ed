"""A pipeline that dies and goes on, in two halves, each for any version of Spark: `scripts/versions.py` runs both.

    python versions_smoke.py begin FOLDER STATE    # the first files; killed between the two sinks of an epoch
    python versions_smoke.py finish FOLDER STATE   # the rest; every row compared, the store verified

The two halves may run on different versions of Spark: an upgrade.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.sinks import DeltaSink, FileSink
from holdfast.spark import Pipeline
from holdfast.testing.faults import crash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATE_STORES = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATES = {"hdfs": {}, "rocksdb": {STATE_STORES: ROCKSDB}, "transform": {STATE_STORES: ROCKSDB}}
"""Sums in HDFS-backed state and in RocksDB, and sums that a `transformWithState` of the user's keeps."""

FILES = 6
FIRST_FILES = 4
SINKS = 2
KILLED = crash.Moment(crash.StepEvent("sink.commit", "begin"), nth=3 * SINKS)
"""Epoch 3 is decided, and in the first sink only."""
TIMEOUT = 300.0

Rows = list[tuple[str, int]]


def orders() -> list[Rows]:
    """Shops with amounts, per file."""
    chance = random.Random(0)
    return [[(f"shop-{chance.randrange(5)}", chance.randrange(1000)) for _ in range(8)] for _ in range(FILES)]


def sums_by_epoch() -> list[Rows]:
    """The rows that each epoch changes, worked out without Spark."""
    sums: dict[str, int] = {}
    epochs = []
    for lines in orders():
        for shop, amount in lines:
            sums[shop] = sums.get(shop, 0) + amount
        epochs.append(sorted((shop, sums[shop]) for shop in {shop for shop, _ in lines}))
    return epochs


def write_orders(folder: Path, numbers: range) -> None:
    """One file per epoch, in an order that the file source keeps: it goes by time of change."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        hidden = folder / f".{number}"
        lines = [json.dumps({"shop": shop, "amount": amount}) + "\n" for shop, amount in orders()[number]]
        hidden.write_text("".join(lines))
        os.utime(hidden, (1_800_000_000 + number, 1_800_000_000 + number))
        hidden.rename(folder / f"{number}.json")


def run(_: crash.Acknowledge, root: str, state: str) -> None:
    """The pipeline, from where it stands to the end of the files."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for a JVM that lives for seconds
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": f"{root}/warehouse",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",  # chains with snapshots in them
        "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
        **STATES[state],
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    place = Path(root)
    stream = spark.readStream.schema("shop string, amount long").option("maxFilesPerTrigger", 1)
    pipeline = Pipeline("smoke", checkpoints=place / "store")
    sold = pipeline.source("orders", stream.json(str(place / "orders")))
    sums = transformed(sold) if state == "transform" else sold.groupBy("shop").agg(f.sum("amount").alias("total"))
    pipeline.sink("files", FileSink(place / "files"))
    pipeline.sink("table", DeltaSink(place / "table", key=["shop"]))
    pipeline.run(sums, output_mode="update", trigger={"availableNow": True})
    spark.stop()


def transformed(sold: DataFrame) -> DataFrame:
    """The same sums, kept by a processor in Python."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Sum(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, frames: Iterator[pd.DataFrame], _: Any) -> Iterator[pd.DataFrame]:  # noqa: N802
            before = self.total.get()[0] if self.total.exists() else 0
            total = before + sum(int(frame["amount"].sum()) for frame in frames)
            self.total.update((total,))
            yield pd.DataFrame({"shop": [key[0]], "total": [total]})

        def close(self) -> None: ...

    return sold.groupBy("shop").transformWithStateInPandas(Sum(), "shop string, total long", "Update", "None")


def begin(root: Path, state: str) -> None:
    write_orders(root / "orders", range(FIRST_FILES))
    killed = crash.kill_at(f"{__file__}:run", KILLED, timeout=TIMEOUT, root=str(root), state=state)
    expect("killed in the third epoch", killed.killed, True)
    expect("epochs in the files", sorted(files_by_epoch(root)), [1, 2, 3])
    expect("rows in the table", table_rows(root), merged(sums_by_epoch()[:2]))


def finish(root: Path, state: str) -> None:
    write_orders(root / "orders", range(FIRST_FILES, FILES))
    crash.record(f"{__file__}:run", timeout=TIMEOUT, root=str(root), state=state)
    epochs = sums_by_epoch()
    expect("rows in the files", files_by_epoch(root), dict(enumerate(epochs, start=1)))
    expect("rows in the table", table_rows(root), merged(epochs))
    for verb in ("verify", "--deep"), ("status",):
        done = subprocess.run([sys.executable, "-m", "holdfast", *verb, str(root / "store")], capture_output=True)
        expect(f"holdfast {' '.join(verb)}: {done.stdout.decode()}{done.stderr.decode()}", done.returncode, 0)


def files_by_epoch(root: Path) -> dict[int, Rows]:
    folders = (root / "files").glob("epoch=*")
    return {int(folder.name.removeprefix("epoch=")): parquet_rows(folder.glob("*.parquet")) for folder in folders}


def table_rows(root: Path) -> Rows:
    from deltalake import DeltaTable

    return parquet_rows(DeltaTable(root / "table").file_uris())


def parquet_rows(paths: Iterable[str | Path]) -> Rows:
    """Read in this thread: threads of PyArrow are suspected, not proven, to have aborted this process twice."""
    from pyarrow.parquet import ParquetFile

    rows = [row for path in paths for row in ParquetFile(path).read(use_threads=False).to_pylist()]
    return sorted((row["shop"], row["total"]) for row in rows)


def merged(epochs: list[Rows]) -> Rows:
    return sorted({shop: total for rows in epochs for shop, total in rows}.items())


def expect(what: str, found: object, due: object) -> None:
    if found != due:
        raise SystemExit(f"{what}: found {found}, and {due} is due")


if __name__ == "__main__":
    half, folder, state = sys.argv[1:]
    {"begin": begin, "finish": finish}[half](Path(folder), state)
