"""The sinks whose staged output is kept here: one epoch committed, the next one staged and decided on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.sinks import Delivery, DeltaSink, FileSink, IndexSink, PostgresSink, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[int, str | None, bool]
COLUMNS = "id bigint, name string, gone boolean"
ROWS: dict[int, list[Row]] = {
    1: [(1, "one", False), (2, "two", False), (3, "three", False)],
    2: [(2, "two again", False), (3, None, True), (4, "four", False)],
    3: [(1, "one at last", False)],
}
"""By epoch: the first was committed, the second is staged, the third is yet to come."""
ON_DISK = ("files", "delta", "delta-merge", "index")


def appended(epochs: int) -> list[Row]:
    """What a sink without a key holds after so many epochs."""
    return sorted((row for epoch in range(1, epochs + 1) for row in ROWS[epoch]), key=str)


def merged(epochs: int) -> dict[int, str | None]:
    """Names by id, as a sink with a key and deletions has them."""
    found = {}
    for epoch in range(1, epochs + 1):
        for number, name, gone in ROWS[epoch]:
            if gone:
                found.pop(number, None)
            else:
                found[number] = name
    return found


def delivery(kind: str, epoch: int, generation: int) -> Delivery:
    positions = {"orders": f'{{"logOffset":{epoch}}}', "clicks": None}
    return Delivery("museum", kind, 0, epoch, generation, positions, "9f1c0a7e-0000-4000-8000-000000000001")


def sink_on_disk(kind: str, folder: Path) -> Sink:
    if kind == "files":
        return FileSink(folder)
    if kind == "index":
        return IndexSink(f"sqlite:///{folder}/index.db", "id", delete="gone")
    return DeltaSink(folder) if kind == "delta" else DeltaSink(folder, "id", delete="gone")


def sink_to_postgres(dsn: str) -> Sink:
    return PostgresSink(dsn, "people", key="id", delete="gone")


def frame(spark: SparkSession, epoch: int) -> DataFrame:
    return spark.createDataFrame(ROWS[epoch], COLUMNS).coalesce(1)


def commit_one_and_stage_another(sink: Sink, kind: str, spark: SparkSession) -> Any:
    """The descriptor of what is staged, as a checkpoint would have it."""
    sink.prepare(frame(spark, 1).schema, delivery(kind, 0, 1))
    first = delivery(kind, 1, 1)
    sink.commit(sink.stage(frame(spark, 1), first), first)
    return sink.stage(frame(spark, 2), delivery(kind, 2, 1))
