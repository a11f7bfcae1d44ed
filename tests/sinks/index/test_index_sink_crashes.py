"""A driver killed at every step of an epoch's commit into an index: rows and positions are always of one epoch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.mark import ParameterSet

import holdfast
from holdfast.index import SourceCheckpoint
from holdfast.sinks import IndexSink, SinkProgress
from holdfast.testing.conformance.sinks import A, B, C, Row, SinkUnderTest, delivery
from holdfast.testing.faults.crash import CrashRing
from index_places import PLACES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.crash

WORK = f"{Path(__file__).with_name('index_sink_works.py')}:commit"
PERSISTENT = [name for name, place in PLACES.items() if place.abilities.persistent]
SECOND = [(1, "changed"), *B]
AFTER_SECOND = [(1, "changed"), A[1], *B]


class Staged(SinkUnderTest):
    """Three epochs that wait: two of the first lineage, one of the next."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.template = folder / "template"
        sink = IndexSink("sqlite:///nowhere/index.db", "id", staging=self.template)
        self.first = self.stage(A, delivery(1), sink)
        self.second = self.stage(SECOND, delivery(2), sink)
        self.anew = self.stage(C, delivery(1, lineage=1), sink)
        self.copies = 0

    def area(self) -> str:
        self.copies += 1
        area = self.folder / f"area-{self.copies}"
        shutil.copytree(self.template, area)
        return str(area)


@pytest.fixture(scope="module")
def staged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    return Staged(spark, tmp_path_factory.mktemp("staged"))


def found_at(url: str) -> tuple[list[Row], dict[str, SourceCheckpoint]]:
    with holdfast.open_index(url) as index:
        rows = [json.loads(value) for _, value in index.results.scan()]
        return sorted((row["id"], row["name"]) for row in rows), index.checkpoints.read_all_checkpoints()


def positions(epoch: int, sequence: int) -> dict[str, SourceCheckpoint]:
    return {
        "orders": SourceCheckpoint(sequence, f'{{"logOffset":{epoch}}}'.encode()),
        "clicks": SourceCheckpoint(sequence, None),
    }


ONE, TWO = (A, positions(1, 1)), (AFTER_SECOND, positions(2, 2))
ANEW = (C, positions(1, 1 << 40 | 1))
EMPTIED: tuple[list[Row], dict[str, SourceCheckpoint]] = ([], {})


def cases() -> Iterator[ParameterSet]:
    """On SQLite; the others for the soak, since pipelines are killed at the steps of each backend as well."""
    for name in PERSISTENT:
        marks = [] if name == "sqlite" else [pytest.mark.soak]
        yield pytest.param(name, 0, id=f"{name}-epoch", marks=marks)
        yield pytest.param(name, 1, id=f"{name}-lineage", marks=marks)


@pytest.mark.parametrize(("name", "lineage"), list(cases()))
def test_killed_at_every_step_of_a_commit(
    name: str, lineage: int, request: pytest.FixtureRequest, staged: Staged
) -> None:
    epoch, descriptor = (2, staged.second) if lineage == 0 else (1, staged.anew)
    after, between = (TWO, []) if lineage == 0 else (ANEW, [EMPTIED])
    with CrashRing(WORK) as ring:

        def new() -> dict[str, Any]:
            url, area = PLACES[name].fresh(request), staged.area()
            IndexSink(url, "id", staging=area).commit(staged.first, delivery(1))
            return {"url": url, "area": area, "descriptor": descriptor, "lineage": lineage, "epoch": epoch}

        events = ring.record(**new())
        assert {event.name for event in events} >= {"index.epoch", "index.commit", "sink.discard"}
        outcomes = []
        for at in range(len(events)):
            place = new()
            run = ring.kill_at(at, **place)
            assert run.killed
            found = found_at(place["url"])
            assert found in [ONE, *between, after], run.event
            outcomes.append(found)
            assert not (run.acknowledged and found != after)
            next_driver = IndexSink(place["url"], "id", staging=place["area"])
            standing = next_driver.recover(delivery(epoch, lineage=lineage, generation=2), descriptor)
            assert (
                standing
                == {
                    "ONE": SinkProgress(1 if lineage == 0 else None, 0),
                    "EMPTIED": SinkProgress(),
                    "AFTER": SinkProgress(epoch, lineage),
                }["AFTER" if found == after else "EMPTIED" if found == EMPTIED else "ONE"]
            )
            next_driver.commit(descriptor, delivery(epoch, lineage=lineage, generation=2))
            assert found_at(place["url"]) == after
        assert ONE in outcomes
        assert after in outcomes
