"""The events of a store as DataFrames: their columns, and `read_events`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.addresses import kv_absolute
from holdfast.base.codec import msgpack_decoder
from holdfast.errors import Invalid
from holdfast.projections import keys
from holdfast.projections.event import Event
from holdfast.storage.kv.store import Row

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COLUMNS = {
    "position": "bigint",
    "stream": "string",
    "sequence": "bigint",
    "event_id": "string",
    "type": "string",
    "schema_version": "bigint",
    "time_ms": "bigint",
    "correlation_id": "string",
    "causation_id": "string",
    "is_json": "boolean",
    "payload": "binary",
}
"""The columns of a DataFrame of events, with their types."""
RECORD = "record"
"""The whole event in one column of bytes, from which executors decode it again."""
ROWS = 10_000
"""Rows in one record batch."""


class EventHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of an event, decoded if no other column is requested."""

    position: int
    stream: str
    sequence: int


def schema_text() -> str:
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def check_columns(schema: StructType) -> list[str]:
    """The names of the requested columns. `Invalid` if a column does not exist, or has another type."""
    known = COLUMNS | {RECORD: "binary"}
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if known.get(field.name) != kind:
            raise Invalid(
                f"Events have no column {field.name!r} of type {kind}.",
                code="events.column",
                about=field.name,
                unchanged="everything",
                next_step=f"ask for some of: {schema_text()}",
            )
    return schema.names


def batches(
    rows: Iterable[list[Row]], names: Sequence[str], holds: Callable[[str], bool] | None, address: str
) -> Iterator[RecordBatch]:
    """Record batches with the columns `names`, decoded from sealed rows. `holds` says which streams to include.

    Only the requested columns are decoded, and every checksum is verified.
    """
    import pyarrow

    kinds: dict[str, Any] = {"bigint": pyarrow.int64(), "string": pyarrow.string(), "boolean": pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds.get(COLUMNS.get(name, ""), pyarrow.binary())) for name in names])
    kind: type[Any] = EventHeader if set(names) <= {RECORD, *EventHeader.__struct_fields__} else Event
    for some in rows:
        found = keys.unseal_many(some, kind, "event", address)
        if holds is not None:
            kept = [(event, row) for event, row in zip(found, some, strict=True) if holds(event.stream)]
            found, some = [event for event, _ in kept], [row for _, row in kept]
        if found:
            columns = [
                [keys.body_of(value) for _, value in some] if name == RECORD else list(map(attrgetter(name), found))
                for name in names
            ]
            arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            yield pyarrow.record_batch(arrays, schema=schema)


decode_record = msgpack_decoder(Event).decode
"""Decode an event from the column `record`."""


PUSHES = "spark.sql.python.filterPushdown.enabled"


def register_events(spark: SparkSession) -> str:
    """Register the data source `holdfast_events` in a session, for `read` and `readStream`. Returns its name."""
    from holdfast.projections.spark.events_source import NAME, EventsDataSource

    spark.dataSource.register(EventsDataSource)
    return NAME


def read_events(
    spark: SparkSession, url: str, *, columns: str | None = None, streaming: bool = False, **options: Any
) -> DataFrame:
    """The events of a store, one row each. Every executor must reach the store at `url`.

    `columns` lists the wanted columns with their types, "position bigint, payload binary"; the others are not
    decoded. Options: `prefix` of streams, `from_position` and `until` (both included), `partitions` or
    `events_per_partition`; for a stream also `max_events_per_trigger`. Filters on position and stream are applied
    before reading if Spark allows it (`spark.sql.python.filterPushdown.enabled`).

    Guarantees: a batch read returns exactly the events up to the last one at the time of planning. A streaming read
    returns the same events for the same offsets.
    """
    name = register_events(spark)
    reader = (spark.readStream if streaming else spark.read).format(name).option("url", kv_absolute(url))
    if columns is not None:
        reader = reader.schema(columns)
    if str(spark.conf.get(PUSHES, "false")).lower() == "true":
        reader = reader.option("push_filters", "true")
    for option, value in options.items():
        reader = reader.option("from" if option == "from_position" else option, value)
    return reader.load()
