"""A pipeline's surroundings: a shop, a store, files for its revenue, and a sink that refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.sinks import Delivery, Descriptor, SinkProgress
from holdfast.sinks.files import FileSink
from holdfast.spark import Pipeline
from pipeline.shop import Shop, revenue, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ONCE = {"availableNow": True}


class Place:
    """A pipeline's surroundings in one folder."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.shop = Shop(root / "orders")
        self.out = root / "out"
        self.store = str(root / "store")

    def pipeline(self, **options: Any) -> Pipeline:
        return Pipeline("revenue", checkpoints=self.store, **options)

    def run(self, pipeline: Pipeline | None = None, **options: Any) -> None:
        """Everything there is, into files."""
        pipeline = pipeline or self.pipeline(**options)
        orders = pipeline.source("orders", self.shop.orders(self.spark))
        pipeline.sink("files", FileSink(self.out))
        pipeline.run(revenue(orders), output_mode="update", trigger=ONCE)

    def delivered(self) -> list[tuple[Any, ...]]:
        return rows(self.out, "shop", "revenue", "orders", "epoch")

    def newest(self) -> holdfast.CheckpointManifest:
        found = holdfast.open_store(self.store).load_latest()
        assert found is not None
        return found


class RefusingSink:
    """Takes nothing, or fails in some other way that a test wants."""

    guarantee = "exactly-once"

    def __init__(self, *, stage: Exception | None = None, commit: Exception | None = None) -> None:
        self.stage_error = stage
        self.commit_error = commit
        self.history: list[str] = []

    def describe(self) -> dict[str, Any]:
        return {"kind": "refusing"}

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        self.history.append("prepare")

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        frame.write.format("noop").mode("append").save()
        self.history.append(f"stage {delivery.epoch}")
        if self.stage_error:
            raise self.stage_error
        return {"epoch": delivery.epoch}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self.history.append(f"commit {delivery.epoch}")
        if self.commit_error:
            raise self.commit_error

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self.history.append(f"rollback {delivery.epoch}")

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        return SinkProgress(is_known=False)
