"""Runs projections on Spark: handlers on the executors, read model and cursors in one transaction of the driver's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.base.jvm import default_parallelism
from holdfast.errors import Invalid
from holdfast.projections import runner
from holdfast.projections.arguments import check_number
from holdfast.projections.batch import Failure, Works
from holdfast.projections.leases import Hold
from holdfast.projections.projection import Handles, OnError, OnVersion
from holdfast.projections.spark.aggregate import FrameProjection
from holdfast.projections.spark.frame_batches import FrameBatches
from holdfast.projections.spark.projection_batches import SparkBatches
from holdfast.projections.state import Track
from holdfast.projections.store import ProjectionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 1_000_000


class ProjectionRunner(runner.ProjectionRunner):
    """Runs the same projections as `holdfast.projections.ProjectionRunner`, in parallel.

        ProjectionRunner(store, spark).catch_up_persistent(Turnover())

    A projection can also be an aggregation of DataFrames, a `FrameProjection`.

    Events are grouped by stream, or by the projection's own `key(event)`; each group is handled in the order of the
    log, and groups side by side. Catching up and rebuilding run on Spark, everything else in this process.

    Guarantees: read model, cursors, dead letters and position are those that a run in one process would have made, and
    each batch is one commit. If a group has read or written what another has written, that cannot be guaranteed, and
    the batch is refused with nothing committed. A handler that fails is tried again where it runs; if that is to end
    in a stop, everything before the event is committed.

    Does not guarantee: how often a handler is called. Spark may run a task twice, and a batch that is refused or loses
    against another runner is thrown away.
    """

    def __init__(
        self,
        store: ProjectionStore,
        spark: SparkSession,
        *,
        on_error: OnError | None = None,
        on_version: OnVersion = "fail",
        batch: int = BATCH,
        partitions: int | None = None,
    ) -> None:
        """`batch` is how many events go into one commit, `partitions` into how many tasks they are divided."""
        super().__init__(store, on_error=on_error, on_version=on_version, batch=batch)
        if not store.is_persistent:
            raise Invalid(
                f"{store.address} is in the memory of this process, and Spark's executors are others.",
                code="events.memory",
                about=store.address,
                unchanged="everything",
                next_step="open the store at sqlite:///path or on object storage, or run it in one process with "
                "holdfast.projections.ProjectionRunner",
            )
        self._spark = spark
        self._partitions = check_number("partitions", partitions or default_parallelism(spark), 1, 100_000)

    def _works(self, projection: Handles, track: Track, lease: Hold | None) -> Works:
        if isinstance(projection, FrameProjection):
            return FrameBatches(self.store, self._spark, projection, track, lease, partitions=self._partitions)
        return SparkBatches(
            self.store,
            self._spark,
            projection,
            track,
            lease,
            on_error=self._on_error,
            partitions=self._partitions,
        )

    def _failed(self, projection: Handles, failure: Failure, tried: Counter[int], given_up: dict[int, Failure]) -> None:
        """The executors have tried it as often as they may."""
        raise runner.handler_failed(projection, failure, failure.attempts) from failure.error
