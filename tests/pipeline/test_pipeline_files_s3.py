"""A pipeline whose files go to object storage, by Spark's settings alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from revenue_place import ONCE, Place

from holdfast.base import steps
from holdfast.errors import Unavailable
from holdfast.sinks import FileSink
from pipeline.shop import revenue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.s3


class Driver:
    """A program that is started again and again."""

    def __init__(self, spark: SparkSession, root: Path, address: str) -> None:
        self.place, self.address = Place(spark, root), address

    def run(self) -> None:
        pipeline = self.place.pipeline()
        orders = pipeline.source("orders", self.place.shop.orders(self.place.spark))
        pipeline.sink("files", FileSink(self.address))
        pipeline.run(revenue(orders), output_mode="update", trigger=ONCE, restarts=0)

    def delivered(self) -> list[tuple[Any, ...]]:
        read = self.place.spark.read.parquet(self.address).select("shop", "revenue", "orders", "epoch")
        return sorted(map(tuple, read.collect()))


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("files.choose", marks=pytest.mark.soak),
        "files.copy",
        pytest.param("files.log", marks=pytest.mark.soak),
    ],
)
def test_a_decided_epoch_is_finished_by_the_next_start(
    spark: SparkSession, tmp_path: Path, s3a_bucket: str, at: str
) -> None:
    driver = Driver(spark, tmp_path, f"s3a://{s3a_bucket}/revenue")
    driver.place.shop.sell(1)
    driver.run()
    before = driver.delivered()
    driver.place.shop.sell(1)

    def fail(name: str, phase: str, _: float) -> None:
        if (name, phase) == (at, "begin"):
            raise Unavailable("The service is gone.")

    stop = steps.observe(fail)
    try:
        with pytest.raises(Unavailable, match="gone"):
            driver.run()
    finally:
        stop()
    assert driver.delivered() == before
    driver.run()
    assert sorted({row[-1] for row in driver.delivered()}) == [1, 2]
    assert sum(row[2] for row in driver.delivered()) == 3 * 8
    assert len(FileSink(driver.address).files()) >= 2
