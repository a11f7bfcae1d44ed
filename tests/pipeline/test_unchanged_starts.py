"""A start that finds everything as the last query left it reads no state; Spark's run leaves no promise behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from revenue_place import ONCE, Place

from holdfast.pipeline.workdir.workdir import STAMPS, SUSPECT
from holdfast.sinks.files import FileSink
from holdfast.sinks.function import FunctionSink
from holdfast.storage.objects.local import LocalObjects
from pipeline.shop import revenue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WatchedPlace(Place):
    """A place whose pipeline notes in every epoch which of Holdfast's files are in its workdir."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root)
        self.workdir = root / "store" / "workdir"
        self.seen: list[set[str]] = []

    def run_watched(self, **options: Any) -> None:
        """Everything there is; `options` are those of `run`."""
        pipeline = self.pipeline()
        pipeline.sink("look", FunctionSink(lambda rows: self.seen.append(self.notes())))
        pipeline.sink("files", FileSink(self.out))
        orders = pipeline.source("orders", self.shop.orders(self.spark))
        pipeline.run(revenue(orders), output_mode="update", trigger=ONCE, **options)

    def notes(self) -> set[str]:
        return {path.name for path in self.workdir.iterdir()} & {STAMPS, SUSPECT}


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> WatchedPlace:
    return WatchedPlace(spark, tmp_path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the batch objects that were read since."""
    found: list[str] = []
    stream = LocalObjects.stream

    def noted(self: LocalObjects, key: str, **bounds: Any) -> Iterator[Any]:
        if key.endswith(".lz4"):
            found.append(key)
        return stream(self, key, **bounds)

    monkeypatch.setattr(LocalObjects, "stream", noted)
    return found


def test_after_a_clean_end_no_state_is_read(place: WatchedPlace, read: list[str]) -> None:
    place.shop.sell(2)
    place.run_watched()
    assert place.notes() == {STAMPS}
    place.shop.sell(1)
    place.run_watched()
    assert read == []
    assert sorted({row[-1] for row in place.delivered()}) == [1, 2, 3]
    assert place.seen == [set()] * 3  # a driver that is killed leaves none
    assert place.notes() == {STAMPS}
    (place.workdir / STAMPS).unlink()
    place.run_watched()
    assert set(read) == {batch.key for batch in place.newest().needed_batches}


def test_an_old_suspicion_is_gone_once_an_epoch_has_gone_through(place: WatchedPlace, read: list[str]) -> None:
    """Or no stamps would ever be trusted again."""
    place.shop.sell(2)
    place.run_watched()
    (place.workdir / SUSPECT).write_text('{"why": "Spark stumbled over it.", "committed": 0}')
    place.shop.sell(1)
    place.run_watched()
    assert read  # it was doubted
    assert place.notes() == {STAMPS}
    read.clear()
    place.run_watched()
    assert read == []


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_a_start_that_is_asked_to_compares_every_byte(
    place: WatchedPlace, read: list[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    place.shop.sell(2)
    place.run_watched()
    kept = {batch.key for batch in place.newest().needed_batches}
    if way == "environment":
        monkeypatch.setenv("HOLDFAST_VERIFY", "1")
        place.run_watched()
    else:
        place.run_watched(verify=True)
    assert set(read) == kept
    assert place.notes() == {STAMPS}
    read.clear()
    place.run_watched(verify=False)
    assert read == []
