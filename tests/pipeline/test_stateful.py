"""Every stateful operator on every state provider goes on exactly after its workdir was lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.mark import ParameterSet

from holdfast.errors import Corrupt
from holdfast.sinks import FileSink, FunctionSink
from holdfast.spark import Pipeline
from pipeline.shop import Shop, revenue, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREFIX = "spark.sql.streaming.stateStore."
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = {"rocksdb.changelogCheckpointing.enabled": "true"}
# A snapshot every other version, and a look at it several times a second: chains with snapshots in them.
EAGER = {"minDeltasForSnapshot": "2", "maintenanceInterval": "200ms"}
PROVIDERS: dict[str, dict[str, str]] = {
    "hdfs": EAGER,
    "rocksdb": {"providerClass": ROCKSDB, **EAGER},
    "changelog": {"providerClass": ROCKSDB, **CHANGELOG, **EAGER},
    "format 2": {"providerClass": ROCKSDB, **CHANGELOG, "checkpointFormatVersion": "2", **EAGER},
}


@pytest.fixture
def provider(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """State kept as the test asks, and the session as it was afterwards."""
    wanted = {PREFIX + name: value for name, value in PROVIDERS[request.param].items()}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield request.param
    for name in wanted:
        spark.conf.unset(name)


def windows(orders: DataFrame, _: DataFrame) -> DataFrame:
    return revenue(orders)


def first_orders(orders: DataFrame, _: DataFrame) -> DataFrame:
    """The first order of each amount of ten, in the order of the files."""
    return (
        orders.withColumn("ten", orders["amount"] % 10).withWatermark("at", "2 hours").dropDuplicates(["shop", "ten"])
    )


def matches(orders: DataFrame, returns: DataFrame) -> DataFrame:
    """Orders with the orders of the same shop in the minute before."""
    from pyspark.sql import functions as f

    left = orders.withWatermark("at", "2 minutes").select("shop", "amount", "at")
    right = returns.withWatermark("at", "2 minutes").select(
        f.col("shop").alias("other"), f.col("amount").alias("earlier"), f.col("at").alias("before")
    )
    near = (f.col("shop") == f.col("other")) & f.expr("before < at AND before >= at - INTERVAL 10 SECONDS")
    return left.join(right, near).select("shop", "amount", "earlier")


def totals(orders: DataFrame, _: DataFrame) -> DataFrame:
    """A running total per shop, kept by a processor of the user's own."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Total(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, frames: Iterator[pd.DataFrame], _: Any) -> Iterator[pd.DataFrame]:  # noqa: N802
            before = self.total.get()[0] if self.total.exists() else 0
            total = before + sum(int(frame["amount"].sum()) for frame in frames)
            self.total.update((total,))
            yield pd.DataFrame({"shop": [key[0]], "total": [total]})

        def close(self) -> None: ...

    grouped = orders.groupBy("shop")
    return grouped.transformWithStateInPandas(Total(), "shop string, total long", "Update", "None")


Query = Callable[["DataFrame", "DataFrame"], "DataFrame"]
CASES: list[tuple[Query, str, tuple[str, ...], str]] = [
    *((windows, "update", ("shop", "revenue", "epoch"), name) for name in PROVIDERS),
    (windows, "append", ("shop", "revenue", "epoch"), "changelog"),
    (windows, "complete", ("shop", "revenue", "epoch"), "hdfs"),
    (first_orders, "append", ("shop", "amount", "epoch"), "rocksdb"),
    (matches, "append", ("shop", "amount", "earlier", "epoch"), "hdfs"),
    (matches, "append", ("shop", "amount", "earlier", "epoch"), "format 2"),
    (totals, "update", ("shop", "total", "epoch"), "changelog"),
    (totals, "update", ("shop", "total", "epoch"), "format 2"),
]
ONLY_IN_SOAK = {(matches, "hdfs"), (totals, "changelog"), (totals, "format 2")}
"""Totals are in test_moved_state.py as well."""


class Place:
    def __init__(self, spark: SparkSession, root: Path, query: Query, mode: str) -> None:
        self.spark = spark
        self.root = root
        self.shop = Shop(root / "orders")
        self.query = query
        self.mode = mode

    def run(self) -> None:
        pipeline = Pipeline("stateful", checkpoints=self.root / "store", workdir=self.root / "workdir")
        orders = pipeline.source("orders", self.shop.orders(self.spark))
        others = self.shop.orders(self.spark)
        if self.query is matches:
            others = pipeline.source("others", others)
        pipeline.sink("files", FileSink(self.root / "out"))
        pipeline.run(self.query(orders, others), output_mode=self.mode, trigger={"availableNow": True})


@pytest.fixture(scope="module")
def undisturbed() -> dict[tuple[Query, str], list[Any]]:
    """What each query delivers when nothing happens to it."""
    return {}


def case(query: Query, mode: str, columns: tuple[str, ...], provider: str) -> ParameterSet:
    marks = [pytest.mark.soak] if (query, provider) in ONLY_IN_SOAK else []
    return pytest.param(query, mode, columns, provider, id=f"{query.__name__}-{mode}-{provider}", marks=marks)


@pytest.mark.parametrize(
    ("query", "mode", "columns", "provider"), [case(*given) for given in CASES], indirect=["provider"]
)
def test_goes_on_exactly_after_its_workdir_was_lost(
    spark: SparkSession,
    tmp_path: Path,
    undisturbed: dict[tuple[Query, str], list[Any]],
    query: Query,
    mode: str,
    columns: tuple[str, ...],
    provider: str,
) -> None:
    disturbed = Place(spark, tmp_path / "disturbed", query, mode)
    disturbed.shop.sell(3)
    disturbed.run()
    os.rename(disturbed.root / "workdir", disturbed.root / "lost")  # Spark may still be tidying up in there
    disturbed.shop.sell(2)
    disturbed.run()
    found = rows(disturbed.root / "out", *columns)
    if (query, mode) not in undisturbed:  # whichever way state is kept
        place = Place(spark, tmp_path / "undisturbed", query, mode)
        place.shop.sell(5)
        place.run()
        undisturbed[query, mode] = rows(place.root / "out", *columns)
    assert found == undisturbed[query, mode]
    assert len(found) > 5


def test_an_epoch_fails_when_nothing_describes_the_state_any_more(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads the metadata at its next start only; a checkpoint without them would pass as whole."""
    shop = Shop(tmp_path / "orders")
    shop.sell(4)

    def run(*lost: int) -> None:
        def lose(_: DataFrame, epoch: int) -> None:
            if epoch in lost:
                shutil.rmtree(tmp_path / "workdir/state/0/_metadata")

        pipeline = Pipeline("stateful", checkpoints=tmp_path / "store", workdir=tmp_path / "workdir")
        orders = pipeline.source("orders", shop.orders(spark))
        pipeline.sink("files", FileSink(tmp_path / "out"))
        pipeline.sink("lose", FunctionSink(lose))
        pipeline.run(revenue(orders), output_mode="update", trigger={"availableNow": True}, restarts=0)

    with pytest.raises(Corrupt, match="the description of the query's state") as found:
        run(2)
    assert found.value.code == "workdir.incomplete"
    assert {row[0] for row in rows(tmp_path / "out", "epoch")} == {1, 2}
    run()
    assert {row[0] for row in rows(tmp_path / "out", "epoch")} == {1, 2, 3, 4}
