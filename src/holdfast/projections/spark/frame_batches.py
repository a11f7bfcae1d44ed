"""One batch of an aggregation: computed by Spark, combined with the read model and committed by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid
from holdfast.index.rows import encoded
from holdfast.projections import astray, cursors, keys
from holdfast.projections.arguments import check_key, check_value
from holdfast.projections.backend import Change
from holdfast.projections.batch import Batch, Failure, Unit, changes, moved
from holdfast.projections.leases import Hold
from holdfast.projections.spark.aggregate import FrameProjection
from holdfast.projections.spark.events import read_events
from holdfast.projections.spark.projection_batches import explained, next_positions
from holdfast.projections.state import Standing, Track
from holdfast.projections.store import ProjectionStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Streams(msgspec.Struct, frozen=True):
    """The streams of a batch, and what of them was handled before."""

    reached: dict[str, int]
    """New cursors, of streams with events that follow theirs."""
    seen: dict[str, int]
    """Cursors of streams with events that do not."""
    events: int
    """How many follow."""


class FrameBatches:
    """Works through the log with an aggregation. Everything it writes is one commit with the cursors."""

    def __init__(
        self,
        store: ProjectionStore,
        spark: SparkSession,
        projection: FrameProjection,
        track: Track,
        lease: Hold | None,
        *,
        partitions: int,
    ) -> None:
        self._store = store
        self._spark = spark
        self._projection = projection
        self._track = track
        self._lease = lease
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
        found = next_positions(self._store, self._track, current, self._projection.streams, limit, until)
        if found is None:
            return None
        start, last = found
        streams, rows = Streams({}, {}, 0), list[Change]()
        if last > start:
            with step("projection.handle", events=last - start):
                streams = self._streams(start, last)
                rows = self._rows(start, last, streams.seen, current.build)
        new = moved(current, self._projection.version, last, now_ms)
        unit = Unit(self._store.backend, self._track, known, self._lease)
        try:
            unit.commit(changes(self._track, new, rows, streams.reached, []))
        finally:
            unit.rollback()
        return Batch(new, True, streams.events, len(streams.reached))

    def _streams(self, start: int, last: int) -> Streams:
        from pyspark.sql import functions as f

        events = self._events(start, last, "stream string, sequence bigint, position bigint")
        frame = events.groupBy("stream").agg(f.min("sequence"), f.max("sequence"), f.min("position"))
        backend, found = self._store.backend, sorted(self._collected(frame), key=lambda row: row[3])
        before = cursors.read_some(backend, self._track, [stream for stream, *_ in found], backend.address)
        for stream, low, _, _ in found:
            if low > before[stream] + 1:
                raise astray.gap(self._track, stream, before[stream], low)
            if low <= before[stream]:
                astray.check_was_seen(self._store.log, self._track, stream, before[stream])
        return Streams(
            {stream: high for stream, _, high, _ in found if high > before[stream]},
            {stream: before[stream] for stream, low, _, _ in found if low <= before[stream]},
            sum(max(0, high - before[stream]) for stream, _, high, _ in found),
        )

    def _rows(self, start: int, last: int, seen: dict[str, int], build: int) -> list[Change]:
        """The rows of the new events, each combined with the one that the read model has."""
        frame = self._aggregated(self._unseen(self._events(start, last), seen))
        rows = self._collected(encoded(frame, self._projection.columns, None))
        if any(key is None for key, _ in rows):
            raise self._refused("there are rows in which a column of the key is null")
        if len({key for key, _ in rows}) < len(rows):
            raise self._refused(f"there are several rows with the same {', '.join(self._projection.columns)}")
        prefix = keys.of_build(self._track.escaped, build)
        stored = [prefix + check_key(key) for key, _ in rows]
        kept = self._store.backend.read("views", stored)
        return [
            ("views", key, check_value(new if old is None else self._projection.combined(old, new, frame.schema)))
            for key, old, (_, new) in zip(stored, kept, rows, strict=True)
        ]

    def _aggregated(self, events: DataFrame) -> DataFrame:
        try:
            frame = self._projection.aggregate(events)
            schema: StructType = frame.schema
        except HoldfastError:
            raise
        except Exception as error:
            raise self._refused(f"its aggregation does not work on events: {error}") from error
        self._projection.check(schema)
        return frame

    def _unseen(self, events: DataFrame, seen: dict[str, int]) -> DataFrame:
        if not seen:
            return events
        handled = self._spark.createDataFrame(list(seen.items()), "stream string, handled bigint")
        joined = events.join(handled, "stream", "left")
        return joined.where("handled is null or sequence > handled").select(events.columns)

    def _events(self, start: int, last: int, columns: str | None = None) -> DataFrame:
        return read_events(
            self._spark,
            self._store.address,
            columns=columns,
            prefix=self._projection.streams,
            from_position=start + 1,
            until=last,
            partitions=self._partitions,
        )

    def _collected(self, frame: DataFrame) -> list[tuple[Any, ...]]:
        try:
            table = frame.toArrow()
        except Exception as error:
            raise explained(error, self._projection.name) from error
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def _refused(self, why: str) -> Invalid:
        return Invalid(
            f"Projection {self._track.name[:200]!r}: {why}.",
            code="projection.frame",
            about=f"projection {self._track.name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="aggregate to one row per key, without nulls in the key",
        )
