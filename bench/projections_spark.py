"""Projections on Spark: against the same handler over the same events in parquet, with nothing kept of where it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.epochs import session
from bench.measure import Row, in_turns
from holdfast.projections import Append, Event, MemoryView, NewEvent, Projection, View, open_projections
from holdfast.projections.spark.events import decode_record
from holdfast.spark import ProjectionRunner, read_events

EVENTS = 1_000_000
STREAMS = 100_000
ROUNDS = 5
PARTITIONS = 2
COLUMNS = "stream string, position bigint, record binary"


class Turnover(Projection):
    """What each order has brought in."""

    name = "turnover"

    def __init__(self, number: int) -> None:
        self.name = f"turnover-{number}"  # type: ignore[misc]

    def handle(self, event: Event, view: View) -> None:
        order = event.stream.encode()
        view.put(order, b"%d" % (int(view.get(order) or 0) + event.json()["cents"]))


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, session(Path(folder)) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        yield _against_parquet(spark, folder)


def _against_parquet(spark: Any, folder: str) -> Row:
    url, parquet = f"sqlite:///{folder}/events.db", f"{folder}/events.parquet"
    with open_projections(url) as store:
        for start in range(0, EVENTS, 100_000):
            store.append_many(
                [
                    Append(f"order-{number * 7919 % STREAMS:06}", [NewEvent("paid", {"cents": number % 1000})])
                    for number in range(start, start + 100_000)
                ]
            )
        read_events(spark, url, columns=COLUMNS, partitions=8).write.parquet(parquet)
        runner = ProjectionRunner(store, spark, batch=EVENTS, partitions=PARTITIONS)
        turns = iter(range(1_000))

        def ours() -> None:
            done = runner.catch_up_persistent(Turnover(next(turns)))
            assert (done.handled, done.cursors) == (EVENTS, STREAMS)

        def theirs() -> None:
            events = spark.read.parquet(parquet).repartition(PARTITIONS, "stream")
            handled = events.sortWithinPartitions("stream", "position").mapInArrow(_handled, "key binary, value binary")
            handled.write.mode("overwrite").parquet(f"{folder}/turnover.parquet")

        took, plain = in_turns(ours, theirs, rounds=ROUNDS)
        last = f"turnover-{next(turns) - 1}"
        kept = {(bytes(key), bytes(value)) for key, value in store.view(last).scan()}
    assert kept == {
        (bytes(key), bytes(value)) for key, value in spark.read.parquet(f"{folder}/turnover.parquet").collect()
    }
    ratio = plain / took
    return Row(
        f"catch-up on Spark of {EVENTS:,} events in {STREAMS:,} streams, against the same handler over parquet without "
        "cursors and transaction",
        f"{ratio:.2f} x",
        ">= 0.5 x",
        ratio >= 0.5,
        f"{EVENTS / took:,.0f}/s against {EVENTS / plain:,.0f}/s",
    )


def _handled(batches: Iterator[Any]) -> Iterator[Any]:
    """The handler alone: one view per stream, and what is in it at the end."""
    import pyarrow

    projection, view, stream = Turnover(0), MemoryView(), None
    done: list[tuple[bytes, bytes]] = []
    for batch in batches:
        for event in map(decode_record, batch.column("record").to_pylist()):
            if event.stream != stream:
                done += view.values.items()
                view, stream = MemoryView(), event.stream
            projection.handle(event, view)
        if done:
            keys, values = zip(*done, strict=True)
            done = []
            yield pyarrow.record_batch([pyarrow.array(keys), pyarrow.array(values)], names=["key", "value"])
    if view.values:
        columns = [pyarrow.array(list(view.values)), pyarrow.array(list(view.values.values()))]
        yield pyarrow.record_batch(columns, names=["key", "value"])
