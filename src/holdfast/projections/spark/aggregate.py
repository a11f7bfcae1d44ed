"""A projection defined as an aggregation: Spark aggregates new events, then rows are combined with the read model."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.base.arguments import check_key, check_value
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid, one_line
from holdfast.index.rows import encoded, key_bytes, problems
from holdfast.projections import cursors, keys
from holdfast.projections.batch import BatchResult, Failure, ProjectionCommit, moved, next_positions, writes
from holdfast.projections.event import Event
from holdfast.projections.spark.events import read_events
from holdfast.projections.spark.merge import explained
from holdfast.projections.state import BuildRef, ProjectionState
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import View
from holdfast.projections.worker_lease import WorkerLease

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

Combination = Literal["sum", "min", "max", "last"]
COMBINATIONS = ("sum", "min", "max", "last")
NULL = b"null"
_WHOLE = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}
_IN_ORDER = {*_WHOLE, "string", "boolean", "date", "timestamp", "timestamp_ntz"}
# More digits than a sum in Spark can have, so that nothing is rounded.
_EXACT = decimal.Context(prec=100)
_document = msgspec.json.Decoder(dict[str, msgspec.Raw])


class FrameProjection:
    """Rows by key, made by an aggregation of a DataFrame of events.

        FrameProjection(
            "turnover",
            key="shop",
            aggregate=lambda events: events.where("type = 'paid'")...groupBy("shop").agg(sum("cents").alias("cents")),
            combine={"cents": "sum"},
        )

    `aggregate` takes the new events, with the columns of `read_events`, and returns one row per key. For every other
    column, `combine` says how to combine the row of the new events with the stored row: `sum`, `min`, `max`, or `last`,
    which takes the value of the newer row. Each row is an entry of the read model, key and value as JSON documents.

    Guarantees: if aggregating the parts and combining the results gives the same as aggregating all events, then the
    read model is the aggregation of all events up to the projection's position. A combination that would not be exact,
    such as a sum of floats, is refused.
    """

    def __init__(
        self,
        name: str,
        version: int = 1,
        *,
        key: str | Sequence[str],
        aggregate: Callable[[DataFrame], DataFrame],
        combine: Mapping[str, Combination],
        streams: str = "",
    ) -> None:
        self.name = name
        self.version = version
        self.streams = streams
        self.columns = [key] if isinstance(key, str) else list(key)
        self.aggregate = aggregate
        self.combine = dict(combine)
        unknown = [how for how in self.combine.values() if how not in COMBINATIONS]
        both = sorted(set(self.columns) & self.combine.keys())
        if not self.columns or unknown or both:
            why = f"{unknown[0]!r} is not a combination" if unknown else f"{', '.join(both) or 'no column'} is its key"
            raise _refused(name, why)

    def handle(self, event: Event, view: View) -> None:
        """`Invalid`: an aggregation has no handler for single events."""
        raise _refused(self.name, "it is an aggregation, and events are not handled one by one")

    def key_of(self, **columns: Any) -> bytes:
        """The key of a row in the read model, for `store.view(name).get`. The first columns alone give a prefix."""
        return key_bytes(self.columns, columns)

    def check(self, schema: StructType) -> None:
        """`Invalid` if rows of this schema cannot be stored and combined exactly."""
        found = problems(schema, self.columns, None)
        kinds = {field.name: field.dataType for field in schema.fields if field.name not in self.columns}
        found += [f"there is no combination for the column {name!r}" for name in kinds if name not in self.combine]
        found += [f"there is no column {name!r} to combine" for name in self.combine if name not in kinds]
        found += [
            f"{self.combine[name]} of the column {name!r}, which is {kind.simpleString()}, is not exact"
            for name, kind in kinds.items()
            if name in self.combine and not _is_exact(self.combine[name], kind)
        ]
        if found:
            raise _refused(self.name, "; ".join(found))

    def combined(self, before: bytes, new: bytes, schema: StructType) -> bytes:
        """Combine the stored value of a row with the value from newer events."""
        old, row = _document.decode(before), _document.decode(new)
        for name, how in self.combine.items():
            kept, came = bytes(old.get(name, NULL)), bytes(row.get(name, NULL))
            row[name] = msgspec.Raw(self._combined(name, how, kept, came, schema[name].dataType))
        return msgspec.json.encode(row)

    def _combined(self, name: str, how: Combination, kept: bytes, came: bytes, kind: DataType) -> bytes:
        if how == "last" or kept == NULL:
            return came
        if came == NULL:
            return kept
        if how != "sum":
            return (min if how == "min" else max)((kept, came), key=_comparable)
        total = _EXACT.add(decimal.Decimal(kept.decode()), decimal.Decimal(came.decode()))
        limit = _WHOLE.get(kind.typeName())
        if limit is not None and not -limit <= total < limit:
            raise _refused(self.name, f"the sum of column {name!r} does not fit into {kind.simpleString()}")
        return str(total).encode()


def _comparable(literal: bytes) -> Any:
    if literal[:1] == b'"' or literal in (b"true", b"false"):
        return msgspec.json.decode(literal)
    return decimal.Decimal(literal.decode())


def _is_exact(how: Combination, kind: DataType) -> bool:
    name = kind.typeName()
    if how == "sum":
        return name in _WHOLE or name == "decimal"
    return how == "last" or name in _IN_ORDER or name == "decimal"


def _refused(name: str, why: str) -> Invalid:
    return Invalid(
        f"Projection {name[:200]!r}: {why}.",
        code="projection.frame",
        about=f"projection {name[:200]!r}",
        unchanged="its read model and its cursors",
        next_step="aggregate to one row per key, with a combination for every other column, and run it on Spark",
    )


class StreamProgress(msgspec.Struct, frozen=True):
    """The streams of a batch: new cursors, and streams with events that were handled before."""

    reached: dict[str, int]
    """The new cursor of each stream that has events after its cursor."""
    seen: dict[str, int]
    """The cursor of each stream that has events up to its cursor, which were handled before."""
    events: int
    """How many events follow the cursor of their stream."""


class FrameBatches:
    """Handles batches by aggregation. Rows and cursors are written in one commit."""

    def __init__(
        self,
        store: ProjectionStore,
        spark: SparkSession,
        projection: FrameProjection,
        ref: BuildRef,
        lease: WorkerLease | None,
        *,
        partitions: int,
    ) -> None:
        self._store = store
        self._spark = spark
        self._projection = projection
        self._ref = ref
        self._lease = lease
        self._partitions = partitions

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
        found = next_positions(
            self._store.kv, self._store.log, self._ref, current, self._projection.streams, limit, until
        )
        if found is None:
            return None
        start, last = found
        streams, rows = StreamProgress({}, {}, 0), dict[bytes, bytes | None]()
        if last > start:
            with step("projection.handle", events=last - start):
                streams = self._streams(start, last)
                rows = self._rows(start, last, streams.seen, current.build)
        new = moved(current, self._projection.version, last, now_ms)
        commit = ProjectionCommit(self._store.kv, self._ref, known, self._lease)
        try:
            commit.commit(writes(self._ref, new, rows, streams.reached, []))
        finally:
            commit.rollback()
        return BatchResult(new, True, streams.events, len(streams.reached))

    def _streams(self, start: int, last: int) -> StreamProgress:
        from pyspark.sql import functions as f

        events = self._events(start, last, "stream string, sequence bigint, position bigint")
        frame = events.groupBy("stream").agg(f.min("sequence"), f.max("sequence"), f.min("position"))
        kv, found = self._store.kv, sorted(self._collected(frame), key=lambda row: row[3])
        before = cursors.read_some(kv, self._ref, [stream for stream, *_ in found], kv.address)
        for stream, low, _, _ in found:
            if low > before[stream] + 1:
                raise cursors.gap(self._ref, stream, before[stream], low)
        seen = {stream: before[stream] for stream, low, _, _ in found if low <= before[stream]}
        cursors.check_were_seen(self._store.log, self._ref, seen)
        return StreamProgress(
            {stream: high for stream, _, high, _ in found if high > before[stream]},
            seen,
            sum(max(0, high - before[stream]) for stream, _, high, _ in found),
        )

    def _rows(self, start: int, last: int, seen: dict[str, int], build: int) -> dict[bytes, bytes | None]:
        """The rows of the new events, each combined with its row in the read model."""
        frame = self._aggregated(self._unseen(self._events(start, last), seen))
        rows = self._collected(encoded(frame, self._projection.columns, None))
        if any(key is None for key, _ in rows):
            raise self._refused("there are rows in which a column of the key is null")
        if len({key for key, _ in rows}) < len(rows):
            raise self._refused(f"there are several rows with the same {', '.join(self._projection.columns)}")
        prefix = keys.of_build(self._ref.escaped, build)
        stored = [prefix + check_key(key) for key, _ in rows]
        kept = self._store.kv.get_many("views", stored)
        return {
            key: check_value(new if old is None else self._projection.combined(old, new, frame.schema))
            for key, old, (_, new) in zip(stored, kept, rows, strict=True)
        }

    def _aggregated(self, events: DataFrame) -> DataFrame:
        try:
            frame = self._projection.aggregate(events)
            schema: StructType = frame.schema
        except HoldfastError:
            raise
        except Exception as error:
            raise self._refused(f"its aggregation does not work on events: {one_line(error)}") from error
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
            self._store.url,
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
            f"Projection {self._ref.name[:200]!r}: {why}.",
            code="projection.frame",
            about=f"projection {self._ref.name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="aggregate to one row per key, without nulls in the key",
        )
