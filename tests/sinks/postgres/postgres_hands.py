"""Staging without Spark: the sink's own code, with its one job run by hand in this process."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.sinks.postgres import stage as postgres_loading
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import Delivery, Descriptor

ATTEMPTS = itertools.count(100)
ROWS = [(1, "one"), (2, "two"), (3, "three")]
SIMPLE = StructType().add("id", "long").add("name", "string")


class HandFrame:
    """What of a frame the sink looks at, with the rows as Arrow has them."""

    def __init__(self, schema: StructType, rows: Iterable[Sequence[Any]], types: Sequence[pa.DataType] | None = None):
        self.schema = schema
        names = [field.name for field in schema.fields]
        arrow = types or [_ARROW[field.dataType.simpleString()] for field in schema.fields]
        values = list(zip(*rows, strict=True)) or [() for _ in names]
        arrays = [pa.array(list(column), kind) for column, kind in zip(values, arrow, strict=True)]
        self.batch = pa.RecordBatch.from_arrays(arrays, names=names)

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.schema.fields]


_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "decimal(10,2)": pa.decimal128(10, 2),
}


def run_by_hand(frame: Any, task: Any, place: Any) -> list[Any]:
    """In place of the Spark job: one task for each row, so that there are several."""
    outcomes = []
    for start in range(frame.batch.num_rows):
        attempt = next(ATTEMPTS)
        count, refusal = task.copy([frame.batch.slice(start, 1)], attempt)
        refused = None if refusal is None else json.dumps({"column": refusal.column, "why": refusal.why})
        outcomes.append(SimpleNamespace(attempt=attempt, row_count=count, refused=refused))
    return outcomes


def use_hands(replace: Callable[[Any, str, Any], None]) -> None:
    """Have sinks of this process stage by hand; `replace` is a `setattr` that is undone."""
    replace(postgres_loading, "_run", run_by_hand)
    replace(postgres_loading, "_cast_for_copy", lambda frame, target: frame)


def at(
    epoch: int,
    *,
    lineage: int = 0,
    generation: int = 1,
    pipeline: str = "orders",
    sink: str = "out",
    position: str | None = None,
) -> Delivery:
    """A delivery; with the position of its one source if that is given."""
    positions: dict[str, str | None] = {} if position is None else {"source": position}
    return Delivery(pipeline, sink, lineage, epoch, generation, positions)


def stage(sink: PostgresSink, rows: Sequence[Sequence[Any]], to: Delivery, schema: StructType = SIMPLE) -> Descriptor:
    return sink.stage(HandFrame(schema, rows), to)  # type: ignore[arg-type]


def opened(
    dsn: str, table: str = "out", key: Any = None, *, schema: StructType = SIMPLE, **options: Any
) -> PostgresSink:
    sink = PostgresSink(dsn, table, key, **options)
    sink.prepare(schema, at(0))
    return sink


def ask(dsn: str, query: str) -> list[Any]:
    """Rows as tuples, or bare values where there is one column."""
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(query.encode())
        found = cursor.fetchall() if cursor.description else []
        return [row[0] if len(row) == 1 else row for row in found]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def staging_tables(dsn: str) -> list[str]:
    return ask(
        dsn, "SELECT relname FROM pg_class WHERE starts_with(relname::text, 'holdfast_staged_') AND relkind = 'r'"
    )


def rows(dsn: str) -> list[Any]:
    return ask(dsn, "SELECT id, name FROM out ORDER BY id, name")


def commits(dsn: str) -> list[Any]:
    return ask(dsn, "SELECT pipeline, sink, lineage, epoch, generation, target, row_count FROM holdfast_commits")
