"""Which events of a store a reader requests, and how filters pushed down by Spark narrow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

EVENTS_PER_PARTITION = 50_000


class EventFilter(msgspec.Struct, frozen=True):
    """Events by position, first and last included, and by stream."""

    url: str
    first: int = 1
    until: int | None = None
    """None: the last event at the time of planning."""
    prefix: str = ""
    streams: tuple[str, ...] | None = None
    """None: all streams with the prefix."""
    partitions: int | None = None
    events_per_partition: int = EVENTS_PER_PARTITION

    def holds(self, stream: str) -> bool:
        return stream.startswith(self.prefix) and (self.streams is None or stream in self.streams)

    def ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """The positions from `first` to `last`, in ranges of equal size."""
        events = last - first + 1
        if events <= 0:
            return []
        size = self.events_per_partition if self.partitions is None else -(-events // self.partitions)
        return [(start, min(start + size - 1, last)) for start in range(first, last + 1, size)]


def from_options(options: Mapping[str, str]) -> EventFilter:
    """The filter that the options of a reader describe. `Invalid` if an option is wrong."""
    url = options.get("url")
    if url is None:
        raise _refused("url", "it is missing")
    if url.startswith("memory:"):
        raise Invalid(
            f"{url} is in the memory of one process, and Spark's executors are other processes.",
            code="events.memory",
            about=url,
            unchanged="everything",
            next_step="keep the events in sqlite:///path or on object storage",
        )
    until = options.get("until")
    partitions = options.get("partitions")
    return EventFilter(
        url,
        whole_number("from", options.get("from", "1")),
        None if until is None else whole_number("until", until, 0),
        options.get("prefix", ""),
        None,
        None if partitions is None else whole_number("partitions", partitions),
        whole_number("events_per_partition", options.get("events_per_partition", str(EVENTS_PER_PARTITION))),
    )


def narrowed(filter: EventFilter, by: Filter) -> EventFilter | None:
    """The filter narrowed by `by`, exactly; None if Spark has to apply `by` itself."""
    from pyspark.sql.datasource import IsNotNull

    attribute = getattr(by, "attribute", None)
    if attribute not in (("position",), ("stream",)):
        return None
    if isinstance(by, IsNotNull):
        return filter
    return _by_position(filter, by) if attribute == ("position",) else _by_stream(filter, by)


def _by_position(filter: EventFilter, by: Filter) -> EventFilter | None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

    value = getattr(by, "value", None)
    if not isinstance(value, int):
        return None
    if isinstance(by, EqualTo):
        return _between(filter, value, value)
    if isinstance(by, GreaterThan | GreaterThanOrEqual):
        return _between(filter, value + isinstance(by, GreaterThan), None)
    if isinstance(by, LessThan | LessThanOrEqual):
        return _between(filter, 1, value - isinstance(by, LessThan))
    return None


def _between(filter: EventFilter, first: int, until: int | None) -> EventFilter:
    bounds = [bound for bound in (filter.until, until) if bound is not None]
    return msgspec.structs.replace(filter, first=max(filter.first, first), until=min(bounds, default=None))


def _by_stream(filter: EventFilter, by: Filter) -> EventFilter | None:
    from pyspark.sql.datasource import EqualTo, In, StringStartsWith

    value = getattr(by, "value", None)
    if isinstance(by, EqualTo) and isinstance(value, str):
        return _of_streams(filter, {value})
    if isinstance(by, In) and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return _of_streams(filter, set(value))
    if isinstance(by, StringStartsWith) and isinstance(value, str):
        if value.startswith(filter.prefix):
            return msgspec.structs.replace(filter, prefix=value)
        return filter if filter.prefix.startswith(value) else _of_streams(filter, set())
    return None


def _of_streams(filter: EventFilter, streams: set[str]) -> EventFilter:
    streams = streams - {""}  # no stream has an empty name
    left = streams if filter.streams is None else streams & set(filter.streams)
    return msgspec.structs.replace(filter, streams=tuple(sorted(left)))


def whole_number(option: str, text: str, least: int = 1) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number < 2**63:
        raise _refused(option, f"it must be a whole number from {least}, not {text[:100]!r}")
    return number


def _refused(option: str, why: str) -> Invalid:
    return Invalid(
        f"The option {option!r} of holdfast_events: {why}.",
        code="events.option",
        about=option,
        unchanged="everything",
        next_step="see holdfast.spark.read_events for the options there are",
    )
