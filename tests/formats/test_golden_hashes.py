"""The hashes of a pipeline are the same in every release.

The one over the text of the plan is in checkpoints from before descriptions were recorded: if it moves, the next start
of their pipelines is refused. The one of the description is in the checkpoints of today.

Either has the paths of sources and sinks in it, so everything lies at a fixed place. Spark's plan is in it, too: a new
version of Spark may change all of these hashes without a change of Holdfast's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from golden import compare
from museum import fixed_place

from holdfast import open_store
from holdfast.pipeline.definition import PipelineDefinition
from holdfast.pipeline.query.plan import Query
from holdfast.projections import NewEvent, open_projections
from holdfast.sinks import (
    Delivery,
    DeltaSink,
    Descriptor,
    FileSink,
    FunctionSink,
    IndexSink,
    PostgresSink,
    Sink,
    Standing,
)
from holdfast.spark import Pipeline, read_events
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import cdc
import clicks
import revenue
import sensors

FIXED = Path("/tmp/holdfast-museum-hashes")
AT = "2026-01-01T09:00:00Z"
QUICK = {"spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.shuffle.partitions": "1"}
"""One epoch is enough, in few tasks."""
NOW = {"availableNow": True}


class Described:
    """Says that it is the sink it was made of, and writes nothing."""

    guarantee = "at-least-once"

    def __init__(self, real: Sink) -> None:
        self._real = real

    def describe(self) -> dict[str, Any]:
        return self._real.describe()

    def prepare(self, schema: StructType, delivery: Delivery) -> None: ...

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        return {}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None: ...

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None: ...

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> Standing:
        return Standing(is_known=False)


def consume(frame: DataFrame, epoch: int) -> None:
    """What a FunctionSink is made of."""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Iterator[Path]:
    for module, name, kind in (
        (clicks, "FileSink", FileSink),
        (sensors, "FileSink", FileSink),
        (revenue, "FileSink", FileSink),
        (revenue, "DeltaSink", DeltaSink),
        (cdc, "DeltaSink", DeltaSink),
        (cdc, "PostgresSink", PostgresSink),
    ):
        monkeypatch.setattr(module, name, lambda *words, kind=kind, **named: Described(kind(*words, **named)))
    with fixed_place(FIXED) as place, configured(spark, QUICK):
        yield place


def arrive(folder: Path, line: Mapping[str, Any], name: str = "0.json") -> str:
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps(line) + "\n")
    return str(folder)


def run_clicks(spark: SparkSession, place: Path) -> None:
    source = arrive(place / "clicks", {"visitor": "a", "page": "/", "at": AT})
    clicks.run(spark, source, f"{place}/out", f"{place}/checkpoints", **NOW)


def run_sensors(spark: SparkSession, place: Path) -> None:
    source = arrive(place / "readings", {"sensor": "s1", "celsius": 20.5, "at": AT})
    sensors.run(spark, source, f"{place}/out", f"{place}/checkpoints", **NOW)


def run_cdc(spark: SparkSession, place: Path) -> None:
    source = arrive(place / "changes", {"op": "c", "lsn": 1, "id": 1, "name": "Ada", "city": "London"})
    dsn = "postgresql://reader:secret@db.example:5433/shop"
    cdc.run(spark, source, dsn, f"{place}/lake", f"{place}/checkpoints", **NOW)


def run_revenue(spark: SparkSession, place: Path) -> None:
    arrive(place / "orders", {"shop": "Graz", "currency": "EUR", "amount": 1.5, "at": AT})
    arrive(place / "rates", {"currency": "EUR", "euros": 1.0}, "1.json")
    revenue.run(place, spark)


def run_events(spark: SparkSession, place: Path) -> None:
    """Reads events; its sinks are a function and an index."""
    url = f"sqlite:///{place}/events.db"
    with open_projections(url) as store:
        store.append("order-1", [NewEvent("paid", {"cents": 5})])
    pipeline = Pipeline("events", checkpoints=place / "checkpoints")
    columns = "stream string, type string, position bigint"
    events = pipeline.source("events", read_events(spark, url, columns=columns, streaming=True, prefix="order-"))
    pipeline.sink("function", FunctionSink(consume))
    pipeline.sink("index", Described(IndexSink(f"sqlite:///{place}/index.db", ["stream", "position"], delete="gone")))
    pipeline.run(events, trigger=NOW)


PIPELINES = {
    "examples/cdc.py": run_cdc,
    "examples/clicks.py": run_clicks,
    "examples/revenue.py": run_revenue,
    "examples/sensors.py": run_sensors,
    "events into a function and an index": run_events,
}


@pytest.fixture
def plan_hashes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The hashes over the text of the plans, which are compared and not written any more, as they are computed."""
    found: list[int] = []
    compute = PipelineDefinition.plan_hash

    def recorded(definition: PipelineDefinition, query: Query) -> int:
        found.append(compute(definition, query))
        return found[-1]

    monkeypatch.setattr(PipelineDefinition, "plan_hash", recorded)
    return found


@pytest.mark.slow
def test_pipeline_hashes(spark: SparkSession, place: Path, plan_hashes: list[int]) -> None:
    found = {}
    before = {}
    for number, (name, run) in enumerate(PIPELINES.items()):
        folder = place / str(number)
        folder.mkdir()
        run(spark, folder)
        newest = open_store(folder / "checkpoints").load_latest()
        assert newest is not None
        assert newest.pipeline_hash is not None
        found[name] = f"{newest.pipeline_hash:016x}"
        before[name] = f"{plan_hashes[-1]:016x}"
    compare("plan-hashes.json", {"spark": spark.version} | before)
    compare("pipeline-hashes.json", {"spark": spark.version} | found)
