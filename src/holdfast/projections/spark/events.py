"""The events of a store as DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHES = "spark.sql.python.filterPushdown.enabled"


def register_events(spark: SparkSession) -> str:
    """Make the format `holdfast_events` known to a session, for `read` and `readStream`; its name."""
    from holdfast.projections.spark.events_source import NAME, EventsDataSource

    spark.dataSource.register(EventsDataSource)
    return NAME


def read_events(
    spark: SparkSession, url: str, *, columns: str | None = None, streaming: bool = False, **options: Any
) -> DataFrame:
    """The events of the store at an address that every executor reaches, one row each.

    `columns` names those that are wanted with their types, "position bigint, payload binary"; the others are not even
    decoded. Options: `prefix` of streams, `from_position` and `until` (both included), `partitions` or
    `events_per_partition`; for a stream also `max_events_per_trigger`. Filters on position and stream are applied
    before reading if Spark allows it (`spark.sql.python.filterPushdown.enabled`).

    Guarantees: a batch holds exactly the events up to the last one there was when it was planned. A stream gives the
    same events for the same offsets.
    """
    name = register_events(spark)
    reader = (spark.readStream if streaming else spark.read).format(name).option("url", url)
    if columns is not None:
        reader = reader.schema(columns)
    if str(spark.conf.get(PUSHES, "false")).lower() == "true":
        reader = reader.option("push_filters", "true")
    for option, value in options.items():
        reader = reader.option("from" if option == "from_position" else option, value)
    return reader.load()
