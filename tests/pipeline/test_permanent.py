"""A failure that stays is raised at once, by an error that says what to do. No round of restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from revenue_place import ONCE, Place

from holdfast.errors import HoldfastError
from holdfast.pipeline.reports import Notice, watch
from holdfast.sinks.files import FileSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


@pytest.fixture
def restarts() -> Iterator[list[str]]:
    """What is told of starting again."""
    told: list[str] = []

    def hear(event: object) -> None:
        if isinstance(event, Notice) and event.text.startswith("starting again"):
            told.append(event.text)

    stop = watch(hear)
    yield told
    stop()


def refused(place: Place, frame: DataFrame, out: Path, **options: str) -> HoldfastError:
    pipeline = place.pipeline(**options)
    pipeline.sink("files", FileSink(out))
    with pytest.raises(HoldfastError) as caught:
        pipeline.run(frame, output_mode="update", trigger=ONCE)
    assert caught.value.next_step
    return caught.value


def test_a_state_that_does_not_fit(place: Place, restarts: list[str]) -> None:
    place.shop.sell(1)
    pipeline = place.pipeline()
    pipeline.sink("files", FileSink(place.out))
    orders = place.shop.orders(place.spark)
    pipeline.run(orders.groupBy("shop").agg({"amount": "sum"}), output_mode="update", trigger=ONCE)
    place.shop.sell(1)
    other = orders.groupBy("shop").agg({"amount": "sum", "at": "max"})
    error = refused(place, other, place.out, on_change="accept")
    assert (error.code, restarts) == ("pipeline.needs-reset", [])
    assert "on_change='reset'" in str(error)
    assert pipeline.workdir.suspect_reason() is None


def test_a_directory_that_cannot_be_made(place: Place, restarts: list[str]) -> None:
    place.shop.sell(1)
    (place.root / "file").touch()
    error = refused(place, place.shop.orders(place.spark), place.root / "file" / "out")
    assert (error.code, restarts) == ("disk.not-a-directory", [])
