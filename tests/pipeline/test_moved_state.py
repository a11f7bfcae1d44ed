"""State whose files name each other by absolute addresses, in a workdir that is somewhere else now."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.mark import ParameterSet
from test_stateful import totals
from works import PROVIDERS, RESTLESS
from workshop import remove

from holdfast.sinks import FileSink
from holdfast.spark import Pipeline
from pipeline.shop import Shop, rows
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Query = Callable[["DataFrame", "DataFrame"], "DataFrame"]


def first_of_ten(orders: DataFrame, _: DataFrame) -> DataFrame:
    """The first order of each amount of ten within the watermark."""
    tens = orders.withColumn("total", (orders["amount"] % 10).cast("long")).withWatermark("at", "2 minutes")
    return tens.dropDuplicatesWithinWatermark(["shop", "total"]).select("shop", "total")


def case(query: Query, mode: str, provider: str, *, only_in_soak: bool = False) -> ParameterSet:
    marks = [pytest.mark.soak] if only_in_soak else []
    return pytest.param(query, mode, provider, id=f"{query.__name__}-{provider}", marks=marks)


def run(spark: SparkSession, root: Path, shop: Shop, query: Query, mode: str, workdir: Path) -> None:
    pipeline = Pipeline("moved", checkpoints=root / "store", workdir=workdir)
    orders = pipeline.source("orders", shop.orders(spark))
    pipeline.sink("files", FileSink(root / "out"))
    pipeline.run(query(orders, orders), output_mode=mode, trigger={"availableNow": True})


@pytest.mark.parametrize(
    ("query", "mode", "provider"),
    [
        case(totals, "update", "rocksdb-v2"),
        case(first_of_ten, "append", "hdfs"),
        case(totals, "update", "rocksdb-changelog", only_in_soak=True),
        case(first_of_ten, "append", "rocksdb-v2", only_in_soak=True),
    ],
)
def test_goes_on_at_another_path(spark: SparkSession, tmp_path: Path, query: Query, mode: str, provider: str) -> None:
    """Moved, then copied with the original gone, then lost and asked for at a third path."""
    with configured(spark, PROVIDERS[provider] | RESTLESS | {"spark.sql.shuffle.partitions": "1"}):
        undisturbed, moved = tmp_path / "undisturbed", tmp_path / "moved"
        shop = Shop(tmp_path / "orders")
        for place in range(4):
            shop.sell(1)
            run(spark, moved, shop, query, mode, moved / f"workdir-{place}")
            if place == 0:
                (moved / "workdir-0").rename(moved / "workdir-1")
            elif place == 1:
                shutil.copytree(moved / "workdir-1", moved / "workdir-2")
                remove(moved / "workdir-1")
            else:
                remove(moved / f"workdir-{place}")
        run(spark, undisturbed, shop, query, mode, undisturbed / "workdir")
    found = rows(moved / "out", "shop", "total", "epoch")
    assert found == rows(undisturbed / "out", "shop", "total", "epoch")
    assert len(found) > 5
