"""The events of a store as a streaming source of Spark. The offset is the position of the last event read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.projections.spark.events_filter import EventFilter, whole_number
from holdfast.projections.spark.events_source import PositionPartition, read_partition
from holdfast.projections.store import open_projections

if TYPE_CHECKING:
    from pyarrow import RecordBatch

POSITION = "position"


class EventsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Events in commit order. The same offsets always give the same events."""

    def __init__(self, options: Mapping[str, str], filter: EventFilter, columns: list[str]) -> None:
        self._filter = filter
        self._columns = columns
        most = options.get("max_events_per_trigger")
        self._most = None if most is None else whole_number("max_events_per_trigger", most)
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, here and below
        return {POSITION: self._filter.first - 1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._last()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        last = self._last() if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            last = min(last, start[POSITION] + limit.max_rows)
        return {POSITION: max(last, start[POSITION])}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return {POSITION: self._last()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [PositionPartition(*part) for part in self._filter.ranges(start[POSITION] + 1, end[POSITION])]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_partition(self._filter, self._columns, partition)

    def _last(self) -> int:
        with open_projections(self._filter.url, read_only=True) as store:
            head = store.position
        return head if self._filter.until is None else min(head, self._filter.until)
