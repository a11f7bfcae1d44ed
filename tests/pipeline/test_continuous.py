"""A continuous query: results by key in an index, resumed from where it stands."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from workshop import remove

import holdfast
from holdfast.errors import Corrupt, Invalid
from holdfast.index import Index, SourceCheckpoint
from holdfast.index.records import SCHEMA
from holdfast.sinks import RowsRefused
from holdfast.spark import ContinuousQuery
from holdfast.storage.kv.rocksdb import RocksdbStore
from pipeline.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONCE = {"availableNow": True}


def totals(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return orders.groupBy("shop").agg(f.sum("amount").alias("total"), f.max("at").alias("last"))


class Place:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.shop = Shop(root / "orders")
        self.url = f"sqlite:///{root}/totals.db"

    def run(self, **options: Any) -> ContinuousQuery:
        query = ContinuousQuery("totals", **{"index": self.url, "key": "shop", **options})
        self.frame = totals(query.source("orders", self.shop.orders(self.spark)))
        query.run(self.frame, trigger=ONCE)
        return query

    def expected(self, minutes: int) -> dict[str, int]:
        amounts = [(number % 3, minute * 100 + number) for minute in range(minutes) for number in range(12)]
        return {f"shop-{shop}": sum(amount for one, amount in amounts if one == shop) for shop in range(3)}


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_results_and_positions_by_key_and_as_a_frame(place: Place) -> None:
    place.shop.sell(2)
    query = place.run()
    assert {row["shop"]: row["total"] for row in query.scan()} == place.expected(2)
    found = query.get(shop="shop-1")
    assert found is not None
    assert found["total"] == place.expected(2)["shop-1"]
    assert query.get(shop="none") is None
    assert query.positions()["orders"].source_position == b'{"logOffset":1}'
    read = query.results(place.frame)
    assert read.schema.simpleString() == place.frame.schema.simpleString()
    assert {row["shop"]: row["total"] for row in read.collect()} == place.expected(2)
    assert read.agg({"last": "max"}).first()[0].second == 11


def test_decimals_are_read_exactly(place: Place) -> None:
    place.shop.sell(1)
    query = ContinuousQuery("prices", index=f"{place.root}/prices.db", key="amount")
    orders = query.source("orders", place.shop.orders(place.spark))
    exact = "amount + cast('0.12345678901234567890' AS decimal(38,20)) AS price"
    query.run(orders.selectExpr("amount", exact), output_mode="append", trigger=ONCE)
    assert query.get(amount=7) == {"amount": 7, "price": Decimal("7.12345678901234567890")}
    assert {row["price"] - row["amount"] for row in query.scan()} == {Decimal("0.12345678901234567890")}


def test_an_epoch_that_is_too_large_for_the_index_is_planned_anew_with_less(place: Place) -> None:
    """As the refusal says: with a smaller limit for an epoch, and without the workdir, which has the large one."""
    with Index(RocksdbStore(f"{place.root}/rocks", SCHEMA, limit=6000)) as index:
        for files, minutes in ((1, 1), (2, 2), (2, 0), (1, 0)):
            place.shop.sell(minutes)
            query = ContinuousQuery("all", index=index, key="at", checkpoints=place.root / "checkpoints")
            orders = query.source("orders", place.shop.orders(place.spark, files_per_trigger=files))
            if files == 2:
                with pytest.raises(RowsRefused, match="commits at most"):
                    query.run(orders, output_mode="append", trigger=ONCE)
                assert len(list(index.results.scan())) == 12
                shutil.rmtree(query.pipeline.workdir.home)
            else:
                query.run(orders, output_mode="append", trigger=ONCE)
        assert len(list(index.results.scan())) == 36


def test_it_resumes_with_and_without_sparks_directory(place: Place) -> None:
    place.shop.sell(1)
    place.run()
    place.shop.sell(1)
    query = place.run()
    before = query.positions()["orders"].sequence
    shutil.rmtree(query.pipeline.workdir.home)
    place.run()
    assert query.positions()["orders"].sequence == before
    place.shop.sell(1)
    query = place.run()
    assert {row["shop"]: row["total"] for row in query.scan()} == place.expected(3)
    assert query.positions()["orders"].source_position == b'{"logOffset":2}'


def test_a_volatile_index_starts_over(place: Place) -> None:
    place.shop.sell(2)
    for _ in range(2):
        query = place.run(index="memory://")
        assert {row["shop"]: row["total"] for row in query.scan()} == place.expected(2)
        assert query.results(place.frame).count() == 3
        with pytest.raises(Invalid, match="start over"):
            query.run(place.frame, trigger=ONCE)


def test_an_opened_index_is_used_and_left_open(place: Place) -> None:
    place.shop.sell(1)
    with holdfast.open_index(place.url) as index:
        query = place.run(index=index, checkpoints=place.root / "checkpoints")
        read = query.results(place.frame)
        assert {row["shop"]: row["total"] for row in read.collect()} == place.expected(1)
        assert index.checkpoints.read_checkpoint("orders") == SourceCheckpoint(1, b'{"logOffset":0}')
        assert query.get(shop="shop-0") is not None


def test_an_index_on_a_server_needs_a_place_for_checkpoints() -> None:
    with pytest.raises(Invalid, match="no place for checkpoints"):
        ContinuousQuery("totals", index="redis://localhost/0?index=x", key="shop")


def test_without_its_checkpoints_it_stops_or_starts_over_as_told(place: Place) -> None:
    place.shop.sell(2)
    query = place.run()
    shutil.rmtree(place.root / "totals.db.checkpoints")
    place.shop.sell(1)
    with pytest.raises(Corrupt) as stopped:
        place.run()
    assert stopped.value.code == "sink.ahead"
    assert {row["shop"]: row["total"] for row in query.scan()} == place.expected(2)
    query = place.run(recovery="reset")
    assert {row["shop"]: row["total"] for row in query.scan()} == place.expected(3)
    assert query.positions()["orders"].sequence == 3


def test_with_every_checkpoint_damaged_it_starts_over_as_told(place: Place) -> None:
    for _ in range(2):
        place.shop.sell(1)
        place.run()
    checkpoints = place.root / "totals.db.checkpoints"
    for damaged in checkpoints.rglob("manifest.json"):
        damaged.write_bytes(damaged.read_bytes()[:-9])
    remove(checkpoints / "workdir")
    place.shop.sell(1)
    with pytest.raises(Corrupt) as stopped:
        place.run()
    assert stopped.value.code == "recovery.nothing-left"
    for _ in range(2):
        query = place.run(recovery="reset")
        assert {row["shop"]: row["total"] for row in query.scan()} == place.expected(3)


@pytest.mark.parametrize(
    ("lost", "on_change"), [("the newest checkpoint", "fail"), ("the index", "fail"), ("the index", "accept")]
)
def test_with_older_checkpoints_left_it_starts_over_as_told(place: Place, lost: str, on_change: str) -> None:
    for _ in range(2):
        place.shop.sell(1)
        query = place.run()
    checkpoints = place.root / "totals.db.checkpoints"
    newest = max(holdfast.open_store(checkpoints).list_ids())
    if lost == "the index":
        for path in place.root.glob("totals.db*"):
            if path.is_file():
                path.unlink()
    else:
        [damaged] = checkpoints.rglob(f"*{newest:06}/manifest.json")
        damaged.write_bytes(damaged.read_bytes()[:-9])
        remove(checkpoints / "workdir")
    place.shop.sell(1)
    with pytest.raises(Corrupt) as stopped:
        place.run()
    assert stopped.value.code == ("sink.set-back" if lost == "the index" else "sink.ahead")
    for _ in range(2):
        query = place.run(recovery="reset", on_change=on_change)
        assert {row["shop"]: row["total"] for row in query.scan()} == place.expected(3)
    store = holdfast.open_store(checkpoints)
    assert [found.own.lineage for number in store.list_ids() if (found := store.load_by_id(number))][-1] == 1
    place.shop.sell(1)
    assert {row["shop"]: row["total"] for row in place.run().scan()} == place.expected(4)
