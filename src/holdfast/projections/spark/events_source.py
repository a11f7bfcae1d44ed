"""The events of a store as a Spark data source, read on the executors, without fencing or blocking writers.

Executors open the store read-only: a worker on SlateDB is not fenced by its readers, and a worker on SQLite does not
wait for them. Executors must reach the store at the same address, with the same settings in their environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from holdfast.errors import Invalid
from holdfast.projections import keys
from holdfast.projections.spark.events import ROWS, batches, check_columns, schema_text
from holdfast.projections.spark.events_filter import EventFilter, from_options, narrowed
from holdfast.projections.store import ProjectionStore, open_projections
from holdfast.storage.kv.store import Row

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import Filter

NAME = "holdfast_events"


class EventsDataSource(DataSource):
    """`spark.read.format("holdfast_events").option("url", "sqlite:////...")`; `read_events` does the rest."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_text()

    def reader(self, schema: Any) -> EventsReader:
        # Spark refuses a reader that has `pushFilters` unless filter pushdown is enabled in its configuration.
        pushes = self.options.get("push_filters", "false").lower() == "true"
        return (PushingReader if pushes else EventsReader)(from_options(self.options), check_columns(schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            from holdfast.projections.spark.events_stream import EventsStreamReader
        except ModuleNotFoundError as error:
            raise Invalid(
                "A stream of events needs PySpark 4.2 or newer, which can limit how much a trigger reads.",
                code="events.pyspark",
                about="PySpark",
                unchanged="everything",
                next_step="install pyspark>=4.2, or read the events as a batch",
            ) from error
        return EventsStreamReader(self.options, from_options(self.options), check_columns(schema))


class PositionPartition(InputPartition):
    """The events from position `first` to `last`, both included."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last


class StreamPartition(InputPartition):
    """The events of some streams, up to position `last`."""

    def __init__(self, streams: tuple[str, ...], last: int) -> None:
        self.streams = streams
        self.last = last


class EventsReader(DataSourceReader):
    """Reads the events that exist at the time of planning, partitioned by position."""

    def __init__(self, filter: EventFilter, columns: list[str]) -> None:
        self.filter = filter
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        with open_projections(self.filter.url, read_only=True) as store:
            head = store.position
        last = head if self.filter.until is None else min(head, self.filter.until)
        if self.filter.streams is None:
            # Without partitions, Spark would call `read(None)`: return an empty one instead.
            return [PositionPartition(*part) for part in self.filter.ranges(self.filter.first, last)] or [
                PositionPartition(1, 0)
            ]
        return [StreamPartition(self.filter.streams, last)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_partition(self.filter, self._columns, partition)


class PushingReader(EventsReader):
    """An `EventsReader` that applies filters on position and stream before reading."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            less = narrowed(self.filter, one)
            if less is None:
                yield one
            else:
                self.filter = less


def read_partition(filter: EventFilter, columns: list[str], partition: InputPartition) -> Iterator[RecordBatch]:
    """The events of one partition, as record batches. `Corrupt` if one is missing."""
    with open_projections(filter.url, read_only=True) as store:
        if isinstance(partition, StreamPartition):
            rows = _of_streams(store, filter, partition)
        else:
            assert isinstance(partition, PositionPartition)
            rows = _of_positions(store, partition.first, partition.last)
        is_everything = not filter.prefix and filter.streams is None
        yield from batches(rows, columns, None if is_everything else filter.holds, store.address)


def _of_positions(store: ProjectionStore, first: int, last: int) -> Iterator[list[Row]]:
    while first <= last:
        upto = min(first + ROWS - 1, last)
        rows = list(store.kv.scan("events", keys.NUMBER.pack(first), keys.NUMBER.pack(upto + 1), ROWS))
        if len(rows) != upto - first + 1:
            raise keys.corrupt(store.address, f"the order of events {first} to {upto}", "an event is missing")
        yield rows
        first = upto + 1


def _of_streams(store: ProjectionStore, filter: EventFilter, partition: StreamPartition) -> Iterator[list[Row]]:
    for stream in partition.streams:
        for positions in store.log.positions(stream):
            kept = [one for one in positions if filter.first <= keys.NUMBER.unpack(one)[0] <= partition.last]
            found = store.kv.get_many("events", kept)
            rows = [(key, value) for key, value in zip(kept, found, strict=True) if value is not None]
            if len(rows) != len(kept):
                raise keys.corrupt(store.address, f"stream {stream[:200]!r}", "an event is missing")
            yield rows
