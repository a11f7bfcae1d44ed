"""A pipeline in this process that can be run a little, put back to where it was, damaged, and run on."""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orders import SCHEMA, Order, files_by_epoch, make_orders, merged, revenue_by_epoch, table_rows, write_orders
from works import PROVIDERS, RESTLESS, revenue_of

from holdfast.sinks import DeltaSink, FileSink
from holdfast.spark import EpochReport, Notice, Pipeline, watch
from sparks import configured


def remove(folder: Path) -> None:
    """Out of sight in one move, then bit by bit: Spark's housekeeping may still write there for a query that ended."""
    aside = folder.with_name(f".removed-{uuid.uuid4().hex}")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def replace(folder: Path, by: Path) -> None:
    """One folder in the place of another, which Spark's housekeeping may make anew as soon as it is gone."""
    while True:
        remove(folder)
        try:
            by.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return


class Workshop:
    """Orders into files and a table, below `root`; files of orders are added as it goes."""

    def __init__(
        self,
        spark: Any,
        root: Path,
        provider: str = "hdfs",
        *,
        files: int = 12,
        restless: bool = True,
        has_table: bool = True,
    ) -> None:
        self.spark = spark
        self.root = root
        self.settings = (
            PROVIDERS[provider]
            | (RESTLESS if restless else {})
            | {"spark.sql.shuffle.partitions": "1", "spark.sql.streaming.noDataMicroBatches.enabled": "false"}
        )
        self.orders: list[list[Order]] = make_orders(files)
        self.arrived = 0
        self.workdir = root / "store" / "workdir"
        self.events: list[EpochReport | Notice] = []
        self._has_table = has_table
        self._saved = root.with_name(root.name + "-saved")
        self._saved_arrived = 0

    def arrive(self, files: int = 1) -> None:
        """More orders come in."""
        write_orders(self.root / "orders", self.orders[self.arrived : self.arrived + files], first=self.arrived)
        self.arrived += files

    def pipeline(self, **changed: Any) -> tuple[Pipeline, Any]:
        pipeline = Pipeline("orders", checkpoints=self.root / "store", workdir=self.workdir, **changed)
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.root / "orders"))
        frame = revenue_of(pipeline.source("orders", stream))
        pipeline.sink("files", FileSink(self.root / "files"))
        if self._has_table:
            pipeline.sink("table", DeltaSink(self.root / "table", key=["shop", "minute"]))
        return pipeline, frame

    def run(self, *, settings: Mapping[str, str] | None = None, restarts: int | None = None, **changed: Any) -> None:
        """Run until everything that has arrived is done, with these settings of the session on top."""
        self.events.clear()
        stop_watching = watch(self.events.append)
        try:
            with configured(self.spark, self.settings | dict(settings or {})):
                pipeline, frame = self.pipeline(**changed)
                pipeline.run(frame, output_mode="update", trigger={"availableNow": True}, restarts=restarts)
        finally:
            stop_watching()

    def check(self) -> None:
        """The sinks hold exactly what has arrived, epoch by epoch."""
        due = revenue_by_epoch(self.orders[: self.arrived])
        assert files_by_epoch(self.root / "files") == dict(enumerate(due, start=1))
        if self._has_table:
            assert table_rows(self.root / "table") == merged(due)

    @property
    def said(self) -> str:
        """What the pipeline said in its last run."""
        return "\n".join(event.text for event in self.events if isinstance(event, Notice))

    @property
    def replayed(self) -> list[int]:
        return [event.epoch for event in self.events if isinstance(event, EpochReport) and event.is_replay]

    def save(self) -> None:
        """Remember everything below the root as it is now."""
        shutil.copytree(self.root, self._saved, symlinks=True)
        self._saved_arrived = self.arrived

    def put_back(self) -> None:
        """Everything below the root as it was when it was saved, times of change included."""
        copy = self._saved.with_name(f"{self._saved.name}-copy")
        shutil.copytree(self._saved, copy, symlinks=True)
        replace(self.root, copy)
        self.arrived = self._saved_arrived
