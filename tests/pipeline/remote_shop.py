"""A pipeline that has some or all of its parts on object storage or HDFS, and what its readers see."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from holdfast.base import steps
from holdfast.base.steps import Phase
from holdfast.sinks import DeltaSink, FileSink
from holdfast.spark import Notice, Pipeline, watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOPS = 3
PARTS = ("checkpoints", "workdir", "files", "delta")


class RemoteShop:
    """Orders that arrive in files, one for each epoch, and a pipeline that counts them by shop.

    `parts` lie at `place`, the others on this machine's disk. `sinks` has one or both.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, place: str, *parts: str, sinks: tuple[str, ...] = ("files",)
    ) -> None:
        self.spark, self.folder, self.place, self.parts, self.sinks = spark, folder, place, parts, sinks
        (folder / "orders").mkdir(parents=True)
        self.days = 0
        self.said: list[str] = []
        """What the pipeline has told."""

    def at(self, part: str) -> str:
        return f"{self.place}/{part}" if part in self.parts else str(self.folder / part)

    def sell(self, days: int = 1) -> None:
        for _ in range(days):
            self.days += 1
            lines = [json.dumps({"shop": number % SHOPS}) for number in range(SHOPS * self.days)]
            file = self.folder / "orders" / f"{self.days}.json"
            file.write_text("\n".join(lines))
            # Spark reads files in the order of their times.
            os.utime(file, (1_767_225_600 + self.days,) * 2)

    def run(self, restarts: int = 0) -> None:
        pipeline = Pipeline("orders", checkpoints=self.at("checkpoints"), workdir=self.at("workdir"))
        orders = self.spark.readStream.schema("shop long").option("maxFilesPerTrigger", 1)
        frame = pipeline.source("orders", orders.json(str(self.folder / "orders"))).groupBy("shop").count()
        makers: dict[str, Callable[[str], Any]] = {"files": FileSink, "delta": DeltaSink}
        for name in self.sinks:
            pipeline.sink(name, makers[name](self.at(name)))
        stop = watch(lambda event: self.said.append(event.text) if isinstance(event, Notice) else None)
        try:
            pipeline.run(frame, output_mode="update", trigger={"availableNow": True}, restarts=restarts)
        finally:
            stop()

    @property
    def restarts(self) -> list[str]:
        return [text for text in self.said if text.startswith("starting again")]

    def check(self, options: dict[str, str] | None = None) -> None:
        """Every epoch is there once, in every sink. `options` reach the Delta table."""
        counts = [sum(range(1, day + 1)) for day in range(1, self.days + 1)]
        if "files" in self.sinks:
            found = self.spark.read.parquet(self.at("files")).collect()
            due = [(day, shop, count) for day, count in enumerate(counts, 1) for shop in range(SHOPS)]
            assert sorted((row["epoch"], row["shop"], row["count"]) for row in found) == due
        if "delta" in self.sinks:
            table = DeltaTable(self.at("delta").replace("s3a://", "s3://"), storage_options=options)
            rows = table.to_pyarrow_table().to_pylist()
            assert sorted((row["shop"], row["count"]) for row in rows) == sorted(
                (shop, count) for count in counts for shop in range(SHOPS)
            )


@contextmanager
def when(name: str, phase: Phase, act: Callable[[], object], *, time: int = 1) -> Iterator[list[int]]:
    """Call `act` in the middle of a run, when the step has this phase for the n-th time. Yields how often it had it."""
    seen = [0]

    def hear(step: str, at: Phase, _: float) -> None:
        if (step, at) == (name, phase):
            seen[0] += 1
            if seen[0] == time:
                act()

    stop = steps.observe(hear)
    try:
        yield seen
    finally:
        stop()
