"""A pipeline that has changed, started: what goes on with a notice, what is asked about, what needs a reset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest
from deltalake import DeltaTable

from holdfast import open_store
from holdfast.checkpoints import manifest_json
from holdfast.errors import Invalid
from holdfast.projections import NewEvent, open_projections
from holdfast.sinks import DeltaSink, FileSink
from holdfast.spark import Notice, Pipeline, read_events, watch
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONCE = {"availableNow": True}
COLUMNS = "shop string, amount int, at timestamp"
Query = Callable[["Scene"], "DataFrame"]


class Scene:
    """Orders and refunds in files, one pipeline over them, and what it says."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.arrived = 0
        self.told: list[str] = []
        self.sinks = ["files"]
        for name in ("orders", "refunds"):
            (root / name).mkdir()
        self.arrive()

    def arrive(self) -> None:
        self.arrived += 1
        for name in ("orders", "refunds"):
            line = {"shop": "Graz", "amount": self.arrived, "at": f"2026-01-01T00:{self.arrived:02}:00Z"}
            (self.root / name / f"{self.arrived}.json").write_text(json.dumps(line) + "\n")

    def stream(self, name: str, columns: str = COLUMNS, **options: Any) -> DataFrame:
        return self.spark.readStream.schema(columns).options(**options).json(str(self.root / name))

    def orders(self) -> DataFrame:
        return self.stream("orders")

    def run(
        self,
        query: Query,
        *,
        trigger: dict[str, Any] | None = None,
        mode: str = "append",
        **options: Any,
    ) -> None:
        """Run what has arrived to its end; with another trigger, until one epoch is done."""
        self.told.clear()
        pipeline = Pipeline("shop", checkpoints=self.root / "store", **options)
        for name in self.sinks:
            pipeline.sink(name, FileSink(self.root / name))
        frame = query(self)
        stop_watching = watch(lambda event: self.told.append(event.text) if isinstance(event, Notice) else None)
        try:
            run = pipeline.start(frame, output_mode=mode, trigger=trigger or ONCE)
            while trigger and not run.epochs and not run.await_termination(0.1):
                pass
            run.stop() if trigger else run.await_termination()
        finally:
            stop_watching()

    def refused(self, query: Query, **options: Any) -> Invalid:
        before = self.jobs()
        with pytest.raises(Invalid) as caught:
            self.run(query, **options)
        assert self.jobs() == before, "Spark was put to work"
        return caught.value

    def jobs(self) -> set[int]:
        return set(self.spark.sparkContext.statusTracker().getJobIdsForGroup())

    @property
    def manifest(self) -> Any:
        found = open_store(self.root / "store").load_latest()
        assert found is not None
        return found

    @property
    def description(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest.own.runtime["description"]
        return found

    def rewrite(self, **changed: Any) -> None:
        """The newest manifest as another release would have written it: a description, or none at all."""
        newest = self.manifest
        runtime = {key: value for key, value in newest.own.runtime.items() if key != "description"}
        if changed:
            runtime["description"] = self.description | changed
        own = msgspec.structs.replace(newest.own, runtime=runtime)
        path = max((self.root / "store").glob("checkpoints/checkpoint_*/manifest.json"))
        path.write_bytes(manifest_json.encode(msgspec.structs.replace(newest, holdfast=own)))


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Scene:
    with configured(spark, {"spark.sql.shuffle.partitions": "1"}):
        yield Scene(spark, tmp_path)  # type: ignore[misc]


def counted(scene: Scene) -> DataFrame:
    return scene.orders().groupBy("shop").count()


# Goes on, and tells


def test_a_rate_limit_of_a_source_in_the_plan_is_no_change(scene: Scene) -> None:
    def ticks(rows: int) -> Query:
        return lambda scene: scene.spark.readStream.format("rate").option("rowsPerSecond", rows).load()

    often = {"processingTime": "200 milliseconds"}
    scene.run(ticks(5), trigger=often)
    before = scene.manifest.pipeline_hash
    scene.run(ticks(20), trigger=often)
    assert "Source 'source-1': rowsPerSecond was 5 and is 20: not a part of what the query is." in scene.told
    assert scene.manifest.pipeline_hash == before


def test_a_rate_limit_of_files_is_no_change(scene: Scene) -> None:
    scene.run(lambda scene: scene.stream("orders"))
    scene.arrive()
    scene.run(lambda scene: scene.stream("orders", maxFilesPerTrigger=1, cleanSource="off"))
    assert any("maxFilesPerTrigger was not set and is 1" in text for text in scene.told)
    assert scene.manifest.epoch == 2


def test_partitions_and_state_store_stay_what_they_were(scene: Scene) -> None:
    scene.run(counted, mode="update")
    scene.arrive()
    with configured(scene.spark, {"spark.sql.shuffle.partitions": "3"}):
        scene.run(counted, mode="update")
    said = "This session has spark.sql.shuffle.partitions=3: Spark goes on with 1, with which its state began."
    assert said in scene.told
    assert scene.description["settings"]["spark.sql.shuffle.partitions"] == "1"


def test_another_version_of_spark_is_not_another_query(scene: Scene) -> None:
    scene.run(counted, mode="update")
    plan = [{"kind": "Aggregate", "fingerprint": "0", "keys": ["shop"], "functions": ["count(*)"], "is_stateful": True}]
    scene.rewrite(spark="4.0.0", plan=plan, plan_fingerprint="0")
    scene.arrive()
    scene.run(counted, mode="update")
    assert any(text.startswith("Spark was 4.0.0 and is") for text in scene.told)
    assert scene.manifest.epoch == 2
    scene.rewrite(spark="4.0.0", plan=plan, plan_fingerprint="0")
    refused = scene.refused(lambda scene: scene.orders().groupBy("amount").count(), mode="update", on_change="accept")
    assert refused.code == "pipeline.needs-reset"


def test_events_of_ours_and_a_data_source_in_python(scene: Scene) -> None:
    url = f"sqlite:///{scene.root}/events.db"
    with open_projections(url) as store:
        store.append("order-1", [NewEvent("paid", {"cents": 5})])

    def events(prefix: str, **options: Any) -> Query:
        columns = "stream string, position bigint"
        return lambda scene: read_events(scene.spark, url, columns=columns, streaming=True, prefix=prefix, **options)

    scene.run(events("order-"))
    with open_projections(url) as store:
        store.append("order-2", [NewEvent("paid", {"cents": 7})])
    scene.run(events("order-", max_events_per_trigger=10))
    assert any("max_events_per_trigger was not set and is 10" in text for text in scene.told)
    assert scene.manifest.epoch == 2
    refused = scene.refused(events("refund-"))
    assert "source 'source-1': prefix was order- and is refund-" in refused.message
    assert refused.code == "pipeline.changed"


def test_no_secret_is_recorded(scene: Scene) -> None:
    def numbers(**options: Any) -> Query:
        scene.spark.dataSource.register(numbers_source())
        reader = scene.spark.readStream.format("numbers")
        return lambda scene: reader.options(**options).load().where("label <> 'hunter5'")

    secrets = {"password": "hunter2", "api_key": "hunter3", "url": "https://me:hunter4@host/db?token=hunter6"}
    scene.run(numbers(table="a", maxRowsPerTrigger=1, **secrets))
    document = next((scene.root / "store").glob("checkpoints/checkpoint_*/manifest.json")).read_text()
    assert "hunter" not in document
    assert scene.description["sources"][0]["options"] == {
        "table": "a",
        "maxRowsPerTrigger": "1",
        "password": "***",
        "api_key": "***",
        "url": "https://***@host/db?token=***",
    }
    secrets |= {"password": "other", "api_key": "other", "url": "https://me:other@host/db?token=other"}
    scene.run(numbers(table="a", maxRowsPerTrigger=2, **secrets))
    assert any("maxRowsPerTrigger was 1 and is 2" in text for text in scene.told)
    assert "table was a and is b" in scene.refused(numbers(table="b", maxRowsPerTrigger=2, **secrets)).message


def numbers_source() -> Any:
    """A class that is pickled whole: a worker does not find this module."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def read(self, start: dict[str, int]) -> Any:
            return iter([(start["at"], "x")]), {"at": start["at"] + 1}

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Any:  # noqa: N802
            return iter([(number, "x") for number in range(start["at"], end["at"])])

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number bigint, label string"

        def simpleStreamReader(self, schema: Any) -> Reader:  # noqa: N802
            return Reader()

    return Numbers


def test_a_checkpoint_without_a_description_goes_by_its_hash(scene: Scene) -> None:
    scene.run(counted, mode="update")
    scene.rewrite()
    scene.arrive()
    scene.run(counted, mode="update")
    assert scene.manifest.epoch == 2
    assert scene.description["sources"][0]["connector"] == "json"
    scene.rewrite()
    refused = scene.refused(lambda scene: scene.orders().where("amount > 0").groupBy("shop").count(), mode="update")
    assert "the query or a sink's settings differ" in refused.message


# Asks


def test_a_filter_may_change(scene: Scene) -> None:
    def above(amount: int) -> Query:
        return lambda scene: scene.orders().where(f"amount > {amount}").groupBy("shop").count()

    scene.run(above(0), mode="update")
    scene.arrive()
    refused = scene.refused(above(1), mode="update")
    assert refused.code == "pipeline.changed"
    assert refused.message == (
        "The pipeline has changed since checkpoint 1: Filter (amount > 1) is not as it was "
        "(the state is kept, rows are computed in this way from now on)."
    )
    assert "on_change='accept'" in (refused.next_step or "")
    scene.run(above(1), mode="update", on_change="accept")
    assert any("Filter (amount > 1) is not as it was" in text for text in scene.told)
    scene.arrive()
    scene.run(above(1), mode="update")
    assert scene.manifest.epoch == 3


def test_columns_of_a_source_may_change(scene: Scene) -> None:
    scene.run(lambda scene: scene.orders().select("shop"))
    scene.arrive()
    wider: Query = lambda scene: scene.stream("orders", f"{COLUMNS}, city string").select("shop")  # noqa: E731
    refused = scene.refused(wider)
    assert "source 'source-1' has a new column city string (rows are read with these columns from now on)" in str(
        refused
    )
    assert "on_change='accept'" in (refused.next_step or "")
    scene.run(wider, on_change="accept")
    assert scene.manifest.epoch == 2


def test_a_column_may_be_added_to_a_table(scene: Scene) -> None:
    """What is asked about is the query; the table takes the column with the first epoch that has it."""

    def lake(evolve: Literal["add-columns"] | None = None, **options: Any) -> Callable[[Query], None]:
        def run(query: Query) -> None:
            pipeline = Pipeline("shop", checkpoints=scene.root / "store", **options)
            pipeline.sink("lake", DeltaSink(scene.root / "lake", evolve=evolve))
            pipeline.start(query(scene), trigger=ONCE).await_termination()

        return run

    def narrow(scene: Scene) -> DataFrame:
        return scene.orders().select("shop", "amount")

    def wide(scene: Scene) -> DataFrame:
        return scene.orders().selectExpr("shop", "amount", "2 * amount as twice")

    lake()(narrow)
    scene.arrive()
    with pytest.raises(Invalid, match="the sinks get a new column twice int"):
        lake("add-columns")(wide)
    with pytest.raises(Invalid, match="evolve='add-columns'"):
        lake(on_change="accept")(wide)
    lake("add-columns", on_change="accept")(wide)
    scene.arrive()
    lake("add-columns")(wide)
    found = DeltaTable(scene.root / "lake").to_pyarrow_table().to_pylist()
    assert sorted((row["amount"], row["twice"]) for row in found) == [(1, None), (2, 4), (3, 6)]


def test_sinks_come_and_go(scene: Scene) -> None:
    scene.run(lambda scene: scene.orders())
    scene.arrive()
    scene.sinks = ["files", "archive"]
    refused = scene.refused(lambda scene: scene.orders())
    assert "sink 'archive' is new (it gets the epochs from now on)" in refused.message
    scene.run(lambda scene: scene.orders(), on_change="accept")
    scene.sinks = ["archive"]
    refused = scene.refused(lambda scene: scene.orders())
    assert "sink 'files' is gone (it gets no more epochs)" in refused.message
    assert "on_change='accept'" in (refused.next_step or "")


def windowed(length: str, delay: str, amount: str = "amount") -> Query:
    from pyspark.sql import functions as f

    def query(scene: Scene) -> DataFrame:
        late = scene.orders().withWatermark("at", delay)
        return late.groupBy("shop", f.window("at", length)).agg(f.expr(f"sum({amount})").alias("total"))

    return query


CAN_BE_ACCEPTED: dict[str, tuple[Query, Query, str, str]] = {
    "a watermark": (
        windowed("1 minute", "1 minute"),
        windowed("1 minute", "5 minutes"),
        "update",
        "EventTimeWatermark",
    ),
    "a window": (windowed("1 minute", "1 minute"), windowed("5 minutes", "1 minute"), "update", "Project"),
    "what is summed": (
        windowed("1 minute", "1 minute"),
        windowed("1 minute", "1 minute", "amount + 1"),
        "update",
        "Aggregate",
    ),
    "files of another format": (
        lambda scene: scene.orders().select("shop"),
        lambda scene: scene.spark.readStream.schema(COLUMNS).csv(str(scene.root / "orders")).select("shop"),
        "append",
        "source 'source-1' was read as json and is read as csv",
    ),
    "a path": (
        lambda scene: scene.orders().select("shop"),
        lambda scene: scene.stream("{orders,refunds}").select("shop"),
        "append",
        "source 'source-1': path was",
    ),
}


@pytest.mark.parametrize("case", CAN_BE_ACCEPTED)
def test_spark_goes_on_from_what_is_accepted(scene: Scene, case: str) -> None:
    before, after, mode, said = CAN_BE_ACCEPTED[case]
    scene.run(before, mode=mode)
    scene.arrive()
    refused = scene.refused(after, mode=mode)
    assert refused.code == "pipeline.changed"
    assert said in refused.message
    scene.run(after, mode=mode, on_change="accept")
    assert scene.manifest.epoch == 2


def test_another_output_mode(scene: Scene) -> None:
    scene.run(counted, mode="update")
    scene.arrive()
    assert "the output mode was update and is complete" in scene.refused(counted, mode="complete").message
    scene.run(counted, mode="complete", on_change="accept")
    assert scene.manifest.epoch == 2


# Needs a reset


def summed(*functions: str) -> Query:
    from pyspark.sql import functions as f

    def query(scene: Scene) -> DataFrame:
        return scene.orders().groupBy("shop").agg(*[f.expr(text).alias(f"c{n}") for n, text in enumerate(functions)])

    return query


def joined(kind: str, *, condition: str = "o.shop = r.shop", columns: str = "o.shop, r.amount") -> Query:
    def query(scene: Scene) -> DataFrame:
        orders = scene.orders().withWatermark("at", "1 minute").alias("o")
        refunds = scene.stream("refunds").withWatermark("at", "1 minute").alias("r")
        from pyspark.sql import functions as f

        within = f.expr(f"{condition} and r.at between o.at and o.at + interval 5 minutes")
        return orders.join(refunds, within, kind).selectExpr(*columns.split(", "))

    return query


def joined_with(*columns: str) -> Query:
    """Orders with refunds of which these columns are kept."""

    def query(scene: Scene) -> DataFrame:
        orders = scene.orders().withWatermark("at", "1 minute").alias("o")
        refunds = scene.stream("refunds").withWatermark("at", "1 minute").selectExpr("shop", "at", *columns).alias("r")
        from pyspark.sql import functions as f

        within = f.expr("o.shop = r.shop and r.at between o.at and o.at + interval 5 minutes")
        return orders.join(refunds, within).selectExpr("o.shop", "r.more", "r.less")

    return query


def unique(*columns: str) -> Query:
    return lambda scene: scene.orders().dropDuplicates(list(columns)).select("amount")


NEEDS_RESET: dict[str, tuple[Query, Query, str]] = {
    "an aggregate more": (
        summed("sum(amount)"),
        summed("sum(amount)", "max(amount)"),
        "the aggregation has max(amount) in addition",
    ),
    "an aggregate less": (
        summed("sum(amount)", "count(1)"),
        lambda scene: summed("sum(amount)", "count(1)")(scene).drop("c1"),
        "the aggregation kept sum bigint, count bigint and would keep sum bigint",
    ),
    "aggregates in another order": (
        summed("sum(amount)", "count(1)"),
        summed("count(1)", "sum(amount)"),
        "the aggregation",
    ),
    "sums of rows that change places": (
        summed("sum(amount) filter (where shop = 'a')", "sum(amount) filter (where shop = 'b')"),
        summed("sum(amount) filter (where shop = 'b')", "sum(amount) filter (where shop = 'a')"),
        "the aggregation computed",
    ),
    "sums that change places": (
        summed("sum(amount)", "sum(amount + 1)"),
        summed("sum(amount + 1)", "sum(amount)"),
        "Spark knows them by their order and would mix them up",
    ),
    "another key": (
        lambda scene: scene.orders().groupBy("shop").count(),
        lambda scene: scene.orders().groupBy("amount").count().selectExpr("'x' as shop", "count"),
        "the aggregation was by shop and is by amount",
    ),
    "an aggregation at all": (
        lambda scene: scene.orders().select("shop"),
        lambda scene: scene.orders().select("shop").distinct(),
        "a deduplication is new",
    ),
    "other columns to tell duplicates by": (
        unique("shop"),
        unique("shop", "at"),
        "the deduplication was by shop and is by shop, at",
    ),
    "another type of join": (
        joined("inner"),
        joined("leftOuter"),
        "the join was INNER and is LEFT OUTER",
    ),
    "another path": (
        lambda scene: scene.orders().select("shop"),
        lambda scene: scene.stream("refunds").select("shop"),
        "Spark reads its last files once more, and only below this path",
    ),
    "a join that keeps more columns": (
        joined("inner"),
        joined("inner", columns="o.shop, o.amount + r.amount as amount"),
        "the left side of the join keeps amount",
    ),
    "a join with columns of one type in another order": (
        joined_with("amount + 1 as more", "amount - 1 as less"),
        joined_with("amount - 1 as less", "amount + 1 as more"),
        "the right side of the join kept (shop, at, more, less) in this order and would keep (shop, at, less, more)",
    ),
}


@pytest.mark.parametrize("case", NEEDS_RESET)
def test_state_that_spark_could_not_go_on_from(scene: Scene, case: str) -> None:
    before, after, said = NEEDS_RESET[case]
    mode = "update" if "aggreg" in case or "sums" in case or "key" in case else "append"
    mode = "append" if case == "an aggregation at all" else mode
    scene.run(before, mode=mode)
    scene.arrive()
    for on_change in ("fail", "accept"):
        refused = scene.refused(after, mode=mode, on_change=on_change)
        assert refused.code == "pipeline.needs-reset"
        assert said in refused.message
        assert "or on_change='reset'" in (refused.next_step or "")
        assert "on_change='accept' cannot go on" in (refused.next_step or "")
    scene.run(before, mode=mode)  # as it was, it goes on
    assert scene.manifest.epoch == 2


def test_a_reset_begins_anew_with_the_new_state(scene: Scene) -> None:
    before, after, _ = NEEDS_RESET["an aggregate more"]
    scene.run(before, mode="update")
    scene.sinks = ["anew"]
    scene.run(after, mode="update", on_change="reset")
    assert (scene.manifest.own.lineage, scene.manifest.epoch) == (1, 1)


def test_another_number_of_sources(scene: Scene) -> None:
    scene.run(lambda scene: scene.orders())
    for on_change in ("fail", "accept"):
        refused = scene.refused(lambda scene: scene.orders().union(scene.stream("refunds")), on_change=on_change)
        assert refused.code == "pipeline.needs-reset"
        assert "source 'source-2' is new (Spark's log has offsets of 1 source, the query has 2)" in refused.message


def test_sources_that_nobody_named_in_another_order(scene: Scene) -> None:
    scene.run(lambda scene: scene.orders().union(scene.stream("refunds")))
    for on_change in ("fail", "accept"):
        refused = scene.refused(lambda scene: scene.stream("refunds").union(scene.orders()), on_change=on_change)
        assert refused.code == "pipeline.source-order"
        assert "each would go on from the offsets of the one that had its place" in refused.message


def test_another_connector(scene: Scene) -> None:
    scene.run(lambda scene: scene.orders().selectExpr("cast(amount as bigint) as value"))
    for on_change in ("fail", "accept"):
        refused = scene.refused(
            lambda scene: scene.spark.readStream.format("rate").load().select("value"), on_change=on_change
        )
        assert refused.code == "pipeline.needs-reset"
        assert "source 'source-1' was read as json and is read as rate" in refused.message
