"""One batch of a catch-up on Spark: handled by the executors, committed by the driver in one transaction."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.projections import state
from holdfast.projections.batch import Batch, Failure, Unit, changes, first_position, moved
from holdfast.projections.leases import Hold
from holdfast.projections.projection import Handles, OnError, streams_of
from holdfast.projections.spark.events import read_events
from holdfast.projections.spark.merge import Merged, Part, decode_part
from holdfast.projections.state import Standing, Track
from holdfast.projections.store import ProjectionStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUPED = "grouped_by binary, position bigint, record binary"


class SparkBatches:
    """Works through the log with the executors of a session.

    Guarantees: what is committed is what one process would have committed, or nothing is.
    """

    def __init__(
        self,
        store: ProjectionStore,
        spark: SparkSession,
        projection: Handles,
        track: Track,
        lease: Hold | None,
        *,
        on_error: OnError,
        partitions: int,
    ) -> None:
        self._store = store
        self._spark = spark
        self._projection = projection
        self._track = track
        self._lease = lease
        self._on_error = on_error
        self._partitions = partitions

    def run(
        self,
        known: Standing | None,
        current: Standing,
        *,
        limit: int,
        until: int | None,
        now_ms: int,
        given_up: Mapping[int, Failure],
    ) -> Batch | None:
        backend = self._store.backend
        found = next_positions(self._store, self._track, current, streams_of(self._projection), limit, until)
        if found is None:
            return None
        start, last = found
        failure: Failure | None = None
        while True:
            merged = self._merged(start, last, known, current.build)
            if merged.failure is None:
                break
            # What failed may have seen one half of somebody else's commit.
            state.check_unchanged(backend, self._track, known, backend.address)
            failure = merged.failure
            last = failure.event.position - 1
            if last <= start:
                return Batch(current, False, failure=failure)
        reached = merged.cursors()
        new = moved(current, self._projection.version, last, now_ms)
        unit = Unit(backend, self._track, known, self._lease)
        try:
            unit.commit(changes(self._track, new, merged.changes(new.build), reached, merged.letters))
        finally:
            unit.rollback()
        return Batch(new, True, merged.handled, len(reached), failure, len(merged.letters))

    def _merged(self, start: int, last: int, known: Standing | None, build: int) -> Merged:
        merged = Merged(self._track)
        if last > start:
            with step("projection.handle", events=last - start):
                for part in self._parts(start, last, known, build):
                    merged.add(part)
            merged.check()
        return merged

    def _parts(self, start: int, last: int, known: Standing | None, build: int) -> Iterator[Part]:
        from holdfast.projections.spark.executor import Task, handling

        task = Task(self._store.address, self._projection, self._track, known, build, self._on_error)
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
            self._store.address,
            columns="stream string, position bigint, record binary",
            prefix=streams_of(self._projection),
            from_position=start + 1,
            until=last,
            partitions=self._partitions,
        )


def in_groups(events: DataFrame, projection: Handles, partitions: int) -> DataFrame:
    """Events of one group together, one after the other and in the order of the log."""
    from holdfast.projections.spark.executor import grouping

    if hasattr(projection, "key"):
        grouped = events.mapInArrow(grouping(projection), GROUPED)
    else:
        grouped = events.selectExpr("cast(stream as binary) grouped_by", "position", "record")
    return grouped.repartition(partitions, "grouped_by").sortWithinPartitions("grouped_by", "position")


def next_positions(
    store: ProjectionStore, track: Track, current: Standing, prefix: str, limit: int, until: int | None
) -> tuple[int, int] | None:
    """The position after which the next batch begins, and the one it ends with; None if there is nothing to do."""
    start = first_position(store.backend, store.log, track, current, prefix)
    last = min(start + limit, store.position, start + limit if until is None else until)
    if last > start:
        return start, last
    # A position that took a look at every stream is kept even if nothing follows it.
    return None if current.position is not None or start == 0 else (start, start)


def explained(error: Exception, name: str) -> HoldfastError:
    """What Spark raised, as an error of our tree."""
    about, unchanged = f"projection {name[:200]!r}", "its read model and its cursors"
    if isinstance(error, pickle.PicklingError | AttributeError | TypeError):
        return Invalid(
            f"Projection {name[:200]!r} cannot be sent to Spark's executors: {error}",
            code="projection.pickle",
            about=about,
            unchanged=unchanged,
            next_step="keep open files, connections and locks out of the projection object",
        )
    if "No module named 'holdfast'" in str(error):
        return Invalid(
            "Spark's executors run a Python that has no holdfast.",
            code="projection.executors",
            about=about,
            unchanged=unchanged,
            next_step="install holdfast there, or set PYSPARK_PYTHON to a Python that has it before the session starts",
        )
    return Unavailable(
        f"Spark did not come to the end of a batch of projection {name[:200]!r}: {error}",
        code="spark.failed",
        about=about,
        unchanged=unchanged,
        next_step="see what Spark says, then catch up again",
    )
