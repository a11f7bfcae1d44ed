"""Runs projections on Spark: handlers on the executors; the driver commits read model and cursors together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.base.arguments import check_number
from holdfast.base.jvm import default_parallelism
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid
from holdfast.projections import runner, state
from holdfast.projections.batch import (
    BatchProcessor,
    BatchResult,
    Failure,
    ProjectionCommit,
    moved,
    next_positions,
    writes,
)
from holdfast.projections.projection import OnError, OnVersion, ProjectionLike, streams_of
from holdfast.projections.spark.aggregate import FrameBatches, FrameProjection
from holdfast.projections.spark.events import read_events
from holdfast.projections.spark.merge import GroupResult, MergedResult, decode_part, explained
from holdfast.projections.state import BuildRef, ProjectionState
from holdfast.projections.store import ProjectionStore
from holdfast.projections.worker_lease import WorkerLease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 1_000_000


class ProjectionRunner(runner.ProjectionRunner):
    """Runs the same projections as `holdfast.projections.ProjectionRunner`, in parallel.

        ProjectionRunner(store, spark).catch_up_persistent(Turnover())

    A projection can also be an aggregation of DataFrames, a `FrameProjection`.

    Events are grouped by stream, or by the projection's own `key(event)`. Each group is handled in the order of the
    log, and groups are handled in parallel. Catching up and rebuilding run on Spark, everything else in this process.

    Guarantees: read model, cursors, dead letters and position are the same as after a run in one process, and each
    batch is one commit. This cannot be guaranteed if a group has read or written a key that another group has written:
    such a batch is refused, with nothing committed. If a handler fails and `on_error` says retry or stop, everything
    before the event is committed, as in one process; an event that is retried is a batch of its own.

    Does not guarantee: how often a handler is called. Spark may run a task twice, and a batch that is refused or loses
    against another runner is discarded.
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
        """`batch` is the number of events in one commit, `partitions` the number of tasks that handle them."""
        super().__init__(store, on_error=on_error, on_version=on_version, batch=batch)
        if not store.is_persistent:
            raise Invalid(
                f"{store.address} is in the memory of this process, and Spark's executors are other processes.",
                code="events.memory",
                about=store.address,
                unchanged="everything",
                next_step="open the store at sqlite:///path or on object storage, or run it in one process with "
                "holdfast.projections.ProjectionRunner",
            )
        self._spark = spark
        self._partitions = check_number("partitions", partitions or default_parallelism(spark), 1, 100_000)

    def _processor(self, projection: ProjectionLike, ref: BuildRef, lease: WorkerLease | None) -> BatchProcessor:
        if isinstance(projection, FrameProjection):
            return FrameBatches(self.store, self._spark, projection, ref, lease, partitions=self._partitions)
        return SparkBatches(
            self.store,
            self._spark,
            projection,
            ref,
            lease,
            on_error=self._on_error,
            partitions=self._partitions,
        )


GROUPED = "grouped_by binary, position bigint, record binary"


class SparkBatches:
    """Handles batches on the executors of a session.

    Guarantees: commits exactly what one process would have committed, or nothing.
    """

    def __init__(
        self,
        store: ProjectionStore,
        spark: SparkSession,
        projection: ProjectionLike,
        ref: BuildRef,
        lease: WorkerLease | None,
        *,
        on_error: OnError,
        partitions: int,
    ) -> None:
        self._store = store
        self._spark = spark
        self._projection = projection
        self._ref = ref
        self._lease = lease
        self._on_error = on_error
        self._partitions = partitions
        self._suspects: set[int] = set()
        """The positions of events that failed in a batch that was not committed."""

    def run(
        self,
        known: ProjectionState | None,
        current: ProjectionState,
        *,
        limit: int,
        until: int | None,
        now_ms: int,
        given_up: Mapping[int, Failure],
    ) -> BatchResult | None:
        kv = self._store.kv
        found = next_positions(
            self._store.kv, self._store.log, self._ref, current, streams_of(self._projection), limit, until
        )
        if found is None:
            return None
        start, last = found
        if current.failed is not None:
            self._suspects.add(current.failed.position)
        last = end_of_batch(start, last, self._suspects)
        failure: Failure | None = None
        while True:
            merged = self._merged(start, last, known, current.build)
            if merged.failure is None:
                break
            # The handler may have failed because it read half of a commit that another process made meanwhile.
            state.check_unchanged(kv, self._ref, known, kv.address)
            self._suspects |= merged.failed_positions
            failure = merged.failure
            last = failure.event.position - 1
            if last <= start:
                return BatchResult(current, False, failure=failure)
        reached = merged.cursors()
        new = moved(current, self._projection.version, last, now_ms)
        commit = ProjectionCommit(kv, self._ref, known, self._lease)
        try:
            commit.commit(writes(self._ref, new, merged.writes(new.build), reached, merged.letters))
        finally:
            commit.rollback()
        return BatchResult(new, True, merged.handled, len(reached), failure, len(merged.letters))

    def _merged(self, start: int, last: int, known: ProjectionState | None, build: int) -> MergedResult:
        merged = MergedResult(self._ref)
        if last > start:
            with step("projection.handle", events=last - start):
                for part in self._parts(start, last, known, build):
                    merged.add(part)
            merged.check()
        return merged

    def _parts(self, start: int, last: int, known: ProjectionState | None, build: int) -> Iterator[GroupResult]:
        from holdfast.projections.spark.executor import Task, handling

        task = Task(self._store.url, self._projection, self._ref, known, build, self._on_error)
        try:
            grouped = in_groups(self._events(start, last), self._projection, self._partitions)
            handled = grouped.mapInArrow(handling(task), "part binary")
            table = handled.toArrow()
        except HoldfastError:
            raise
        except Exception as error:
            raise explained(error, self._projection.name) from error
        for batch in table.to_batches():
            parts: list[Any] = batch.column(0).to_pylist()
            yield from map(decode_part, parts)

    def _events(self, start: int, last: int) -> DataFrame:
        return read_events(
            self._spark,
            self._store.url,
            columns="stream string, position bigint, record binary",
            prefix=streams_of(self._projection),
            from_position=start + 1,
            until=last,
            partitions=self._partitions,
        )


def end_of_batch(start: int, last: int, suspects: Collection[int]) -> int:
    """The last position of a batch after `start`: an event that has failed before is a batch of its own.

    If it fails again, the work of its whole batch is lost.
    """
    if start + 1 in suspects:
        return min(last, start + 1)
    return min([last, *(position - 1 for position in suspects if position > start)])


def in_groups(events: DataFrame, projection: ProjectionLike, partitions: int) -> DataFrame:
    """The events, partitioned by group and sorted by group and position."""
    from holdfast.projections.spark.executor import grouping

    if hasattr(projection, "key"):
        grouped = events.mapInArrow(grouping(projection), GROUPED)
    else:
        grouped = events.selectExpr("cast(stream as binary) grouped_by", "position", "record")
    return grouped.repartition(partitions, "grouped_by").sortWithinPartitions("grouped_by", "position")
