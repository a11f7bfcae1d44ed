"""A pipeline as its user sees it: what it delivers, what it records, what it refuses."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import holdfast
from holdfast.checkpoints import manifest_json
from holdfast.errors import Corrupt, Fenced, HoldfastError, Invalid, Unavailable
from holdfast.pipeline.workdir.fence import fence_workdir
from holdfast.sinks import Delivery, Descriptor, RowsRefused, SinkProgress
from holdfast.sinks.files import FileSink
from holdfast.sinks.function import FunctionSink
from holdfast.spark import EpochReport, Pipeline, watch
from pipeline.shop import Shop, revenue, rows
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ONCE = {"availableNow": True}
LAST_WATERMARK = {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
"""An epoch without rows at the end of a run takes up the watermark of the last one with rows."""


class Place:
    """A pipeline's surroundings in one folder."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.shop = Shop(root / "orders")
        self.out = root / "out"
        self.store = str(root / "store")

    def pipeline(self, **options: Any) -> Pipeline:
        return Pipeline("revenue", checkpoints=self.store, **options)

    def run(self, pipeline: Pipeline | None = None, **options: Any) -> None:
        """Everything there is, into files."""
        pipeline = pipeline or self.pipeline(**options)
        orders = pipeline.source("orders", self.shop.orders(self.spark))
        pipeline.sink("files", FileSink(self.out))
        pipeline.run(revenue(orders), output_mode="update", trigger=ONCE)

    def delivered(self) -> list[tuple[Any, ...]]:
        return rows(self.out, "shop", "revenue", "orders", "epoch")

    def newest(self) -> holdfast.CheckpointManifest:
        found = holdfast.open_store(self.store).load_latest()
        assert found is not None
        return found


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


class RefusingSink:
    """Takes nothing, or fails in some other way that a test wants."""

    guarantee = "exactly-once"

    def __init__(self, *, stage: Exception | None = None, commit: Exception | None = None) -> None:
        self.stage_error = stage
        self.commit_error = commit
        self.history: list[str] = []

    def describe(self) -> dict[str, Any]:
        return {"kind": "refusing"}

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        self.history.append("prepare")

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        frame.write.format("noop").mode("append").save()
        self.history.append(f"stage {delivery.epoch}")
        if self.stage_error:
            raise self.stage_error
        return {"epoch": delivery.epoch}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self.history.append(f"commit {delivery.epoch}")
        if self.commit_error:
            raise self.commit_error

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self.history.append(f"rollback {delivery.epoch}")

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        return SinkProgress(is_known=False)


class TestDelivery:
    def test_every_epoch_once_and_on_record(self, place: Place) -> None:
        place.shop.sell(3)
        with configured(place.spark, LAST_WATERMARK):
            place.run()
        epochs = [row[-1] for row in place.delivered()]
        assert sorted(set(epochs)) == [1, 2, 3]
        assert sum(row[2] for row in place.delivered()) == 36
        newest = place.newest()
        assert newest.epoch >= 3
        assert newest.is_settled
        assert newest.sink_epochs == {"files": newest.epoch}
        assert newest.source_names == ["orders"]
        assert newest.source_offsets["orders"].offsets == {"logOffset": "2"}
        assert newest.source_offsets["orders"].metadata["connector"] == "json"
        assert newest.watermark == 1767225731000 - 60_000  # the newest order, a minute back
        assert newest.vnode_count == 2
        flight = newest.inflight_data["orders"][0]
        assert flight.input_id == newest.wal_position == newest.epoch - 1
        assert json.loads(base64.b64decode(flight.data_b64))["end"] == '{"logOffset":2}'

    def test_a_restart_repeats_nothing(self, place: Place) -> None:
        place.shop.sell(2)
        place.run()
        before = place.delivered()
        place.run()
        assert place.delivered() == before
        place.shop.sell(1)
        place.run()
        assert len(place.delivered()) == len(before) + 3

    def test_a_lost_workdir_is_rebuilt_in_another_place(self, place: Place) -> None:
        place.shop.sell(2)
        place.run()
        shutil.rmtree(Path(place.store) / "workdir")
        place.shop.sell(1, orders=6)
        place.run(workdir=place.root / "elsewhere" / "workdir")
        undisturbed = Place(place.spark, place.root / "undisturbed")
        undisturbed.shop.sell(2)
        undisturbed.shop.sell(1, orders=6)
        undisturbed.run()
        mine, theirs = ({row[:3] for row in at.delivered()} for at in (place, undisturbed))
        assert mine == theirs

    def test_views_and_several_sinks_see_one_frame(self, place: Place) -> None:
        from pyspark.sql import functions as f

        place.shop.sell(2)
        pipeline = place.pipeline()
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        chance = revenue(orders).withColumn("chance", f.rand())
        pipeline.sink("all", FileSink(place.root / "all"))
        pipeline.sink("some", FileSink(place.root / "some"), view=lambda frame: frame.where("shop = 'shop-1'"))
        seen: list[Any] = []
        pipeline.sink("function", FunctionSink(lambda frame, epoch: seen.append((epoch, frame.count()))))
        pipeline.run(chance, output_mode="update", trigger=ONCE)
        every = rows(place.root / "all", "shop", "chance", "epoch")
        assert [row for row in every if row[0] == "shop-1"] == rows(place.root / "some", "shop", "chance", "epoch")
        assert seen[:2] == [(1, 3), (2, 3)]

    def test_append_and_complete_mode(self, place: Place) -> None:
        place.shop.sell(4)
        for mode, expected in (("append", {0, 1}), ("complete", {0, 1, 2, 3})):
            pipeline = Pipeline(mode, checkpoints=str(place.root / f"store-{mode}"))
            orders = pipeline.source("orders", place.shop.orders(place.spark))
            pipeline.sink("files", FileSink(place.root / mode))
            with configured(place.spark, LAST_WATERMARK):
                pipeline.run(revenue(orders), output_mode=mode, trigger=ONCE)
            minutes = {row[0].minute for row in rows(place.root / mode, "minute")}
            assert minutes == expected, mode

    def test_it_reports_each_epoch(self, place: Place) -> None:
        place.shop.sell(2)
        events: list[Any] = []
        unwatch = watch(events.append)
        place.run()
        unwatch()
        reports = [event for event in events if isinstance(event, EpochReport)]
        assert [report.epoch for report in reports][:2] == [1, 2]
        assert [report.rows for report in reports][:2] == [12, 12]
        assert reports[0].sinks == {"files": "Committed"}
        assert {"sink.stage", "epoch.capture", "epoch.decide", "sink.commit", "epoch.settle"} <= reports[0].steps.keys()


class TestHandle:
    def test_stop_finishes_the_epoch_and_the_next_start_goes_on(self, place: Place) -> None:
        place.shop.sell(3)
        pipeline = place.pipeline()
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", FileSink(place.out))
        run = pipeline.start(revenue(orders), output_mode="update", trigger={"processingTime": "0 seconds"})
        while run.epochs == 0:
            assert not run.await_termination(0.05)
        assert run.stop(60)
        assert not run.is_active
        done = place.newest()
        assert done.is_settled
        assert (Path(place.store) / "workdir" / "commits" / str(done.wal_position)).exists()
        place.run()
        assert sum(row[2] for row in place.delivered()) == 36

    def test_the_handle_raises_what_ended_the_query(self, place: Place) -> None:
        place.shop.sell(1)
        pipeline = place.pipeline()
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", RefusingSink(stage=RowsRefused("no such thing as a shop")))
        run = pipeline.start(revenue(orders), output_mode="update", trigger=ONCE)
        with pytest.raises(RowsRefused, match="no such thing"):
            run.await_termination(60)


class Counter:
    """Counts the orders it is shown; feeds on a view."""

    def __init__(self) -> None:
        self.orders = 0

    def see(self, frame: DataFrame) -> DataFrame:
        self.orders += frame.groupBy().sum("orders").collect()[0][0] or 0
        return frame

    def snapshot(self) -> bytes:
        return str(self.orders).encode()

    def restore(self, state: bytes) -> None:
        self.orders = int(state)


class TestOperators:
    def test_an_operator_comes_back_with_the_pipeline(self, place: Place) -> None:
        place.shop.sell(2)
        for total in (24, 48):
            pipeline = place.pipeline()
            counter = Counter()
            pipeline.operator("counter", counter)
            orders = pipeline.source("orders", place.shop.orders(place.spark))
            pipeline.sink("files", FileSink(place.out), view=counter.see)
            pipeline.run(revenue(orders), output_mode="update", trigger=ONCE)
            assert counter.orders == total
            assert place.newest().operator_states["counter"].decode_inline() == str(total).encode()
            place.shop.sell(2)

    def test_it_is_put_back_when_an_epoch_fails(self, place: Place) -> None:
        place.shop.sell(2)
        pipeline = place.pipeline()
        counter = Counter()
        pipeline.operator("counter", counter)
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", FileSink(place.out), view=counter.see)
        flaky = RefusingSink(stage=Unavailable("not now"))
        pipeline.sink("flaky", flaky)

        def heal(event: object) -> None:
            if "starting again" in getattr(event, "text", ""):
                flaky.stage_error = None

        unwatch = watch(heal)
        pipeline.run(revenue(orders), output_mode="update", trigger=ONCE)
        unwatch()
        assert counter.orders == 24
        assert flaky.history[:2] == ["prepare", "stage 1"]
        assert sum(row[2] for row in place.delivered()) == 24


class TestTables:
    def test_the_version_is_recorded_and_kept_for_a_replay(self, place: Place) -> None:
        current = "1"

        def read(version: str) -> DataFrame:
            return place.spark.createDataFrame([(f"shop-{n}", int(version)) for n in range(3)], "shop string, rate int")

        def run(*, fail: bool = False) -> None:
            pipeline = place.pipeline()
            orders = pipeline.source("orders", place.shop.orders(place.spark))
            rates = pipeline.table("rates", read, version=lambda: current)
            pipeline.sink("files", FileSink(place.out))
            pipeline.sink("late", RefusingSink(commit=Invalid("not in my table")) if fail else RefusingSink())
            frame = orders.join(rates, "shop").select("shop", "amount", "rate")
            pipeline.run(frame, trigger=ONCE)

        place.shop.sell(1)
        with pytest.raises(Invalid, match="not in my table"):
            run(fail=True)
        assert place.newest().table_offsets["rates"].offsets == {"version": "1"}
        current = "2"
        run()  # the epoch that is run again keeps version 1
        assert place.newest().table_offsets["rates"].offsets == {"version": "1"}
        place.shop.sell(1)
        run()
        assert place.newest().table_offsets["rates"].offsets == {"version": "2"}
        assert {(row[1], row[2]) for row in rows(place.out, "shop", "rate", "epoch")} == {(1, 1), (2, 2)}


class TestPoison:
    def test_refused_rows_are_visible_nowhere(self, place: Place) -> None:
        place.shop.sell(1)
        pipeline = place.pipeline()
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", FileSink(place.out))
        pipeline.sink("strict", RefusingSink(stage=RowsRefused("column revenue must be below 1000")))
        with pytest.raises(RowsRefused) as caught:
            pipeline.run(revenue(orders), output_mode="update", trigger=ONCE)
        assert place.delivered() == []
        assert not list(place.out.glob("_staging/*"))
        assert holdfast.open_store(place.store).list_ids() == []
        for word in ("strict", "epoch 1", "logOffset 0", "nothing of this epoch is visible"):
            assert word in str(caught.value)

    def test_a_commit_that_fails_is_owed_and_finished_later(self, place: Place) -> None:
        place.shop.sell(1)

        def run(sink: RefusingSink) -> None:
            pipeline = place.pipeline()
            orders = pipeline.source("orders", place.shop.orders(place.spark))
            pipeline.sink("files", FileSink(place.out))
            pipeline.sink("moody", sink)
            pipeline.run(revenue(orders), output_mode="update", trigger=ONCE)

        with pytest.raises(Invalid, match="moody"):
            run(RefusingSink(commit=Invalid("no permission")))
        statuses = place.newest().sink_commit_statuses
        assert statuses["files"] == "Committed"
        assert statuses["moody"] == holdfast.SinkCommitStatus.failed("no permission")
        healed = RefusingSink()
        run(healed)
        assert healed.history[:2] == ["prepare", "commit 1"]
        assert place.newest().is_settled
        assert sum(row[2] for row in place.delivered()) == 12


class TestRefusals:
    def refused(self, place: Place, error: type[HoldfastError], *words: str, **options: Any) -> None:
        with pytest.raises(error) as caught:
            place.run(**options)
        for word in words:
            assert word in str(caught.value)

    def test_no_sinks(self, place: Place) -> None:
        pipeline = place.pipeline()
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        with pytest.raises(Invalid, match="has no sink"):
            pipeline.run(orders)

    def test_two_of_one_name(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="already"):
            pipeline.sink("files", FileSink(place.root / "other"))

    def test_not_a_sink(self, place: Place) -> None:
        with pytest.raises(Invalid, match="cannot stage"):
            place.pipeline().sink("print", print)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="cannot stage"):
            place.pipeline().sink("class", FileSink)  # type: ignore[arg-type]

    def test_a_frame_that_is_not_streaming(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="not streaming"):
            pipeline.run(place.spark.range(3))
        with pytest.raises(Invalid, match="not streaming"):
            pipeline.source("numbers", place.spark.range(3))

    def test_a_named_source_that_is_not_used(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="not part of the query"):
            pipeline.run(place.shop.orders(place.spark), trigger=ONCE)

    def test_triggers_that_no_batch_function_has(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        for trigger in ({"continuous": "1 second"}, {"realTime": "5 minutes"}, {"once": True, "availableNow": True}):
            with pytest.raises(Invalid, match="trigger"):
                pipeline.run(place.shop.orders(place.spark), trigger=trigger)

    def test_a_query_that_spark_refuses(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="Spark does not run this query"):
            pipeline.run(revenue(place.shop.orders(place.spark)), output_mode="complete", trigger={"once": False})

    def test_a_workdir_of_another_pipeline(self, place: Place) -> None:
        place.shop.sell(1)
        place.run(workdir=place.root / "workdir")
        other = Pipeline("other", checkpoints=str(place.root / "other"), workdir=place.root / "workdir")
        other.sink("files", FileSink(place.root / "other-out"))
        with pytest.raises(Invalid, match=r"belongs to pipeline 'revenue'"):
            other.run(place.shop.orders(place.spark), trigger=ONCE)

    def test_a_directory_that_is_no_workdir_is_left_alone(self, place: Place) -> None:
        place.shop.sell(1)
        precious = place.root / "home"
        precious.mkdir()
        (precious / "thesis.txt").write_text("years of work")
        self.refused(place, Invalid, "belongs to something else", workdir=precious)
        assert (precious / "thesis.txt").read_text() == "years of work"

    def test_a_store_of_another_pipeline(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        other = Pipeline("other", checkpoints=place.store, workdir=place.root / "workdir-2")
        other.sink("files", FileSink(place.root / "other-out"))
        with pytest.raises(Invalid, match=r"belong to pipeline 'revenue'"):
            other.run(place.shop.orders(place.spark), trigger=ONCE)

    def test_a_lost_store_is_not_a_fresh_start(self, place: Place) -> None:
        place.shop.sell(1)
        place.run(workdir=place.root / "workdir")
        before = place.delivered()
        shutil.rmtree(place.store)
        self.refused(place, Corrupt, "no checkpoint", workdir=place.root / "workdir")
        shutil.rmtree(place.root / "workdir")
        self.refused(place, Corrupt, "Sink 'files' has epoch")
        assert place.delivered() == before

    def test_a_checkpoint_of_a_newer_format(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        newest = max(Path(place.store).glob("checkpoints/checkpoint_*/manifest.json"))
        newest.write_bytes(manifest_json.encode(msgspec.structs.replace(place.newest(), version=2)))
        place.shop.sell(1)
        before = place.delivered()
        self.refused(place, Invalid, "format version 2")
        assert place.delivered() == before


class TestChanges:
    def changed(self, place: Place, **options: Any) -> None:
        pipeline = place.pipeline(**options)
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", FileSink(place.out))
        pipeline.run(revenue(orders.where("amount >= 0")), output_mode="update", trigger=ONCE)

    def test_fail_is_the_default(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        before = place.delivered()
        place.shop.sell(1)
        with pytest.raises(Invalid, match="has changed since checkpoint"):
            self.changed(place)
        assert place.delivered() == before
        place.run()  # as it was, it goes on
        assert len(place.delivered()) == 2 * len(before)

    def test_accept_goes_on_from_the_same_state(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        place.shop.sell(1)
        self.changed(place, on_change="accept")
        assert sum(row[2] for row in place.delivered()) == 24

    def test_reset_begins_again_under_a_new_lineage(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        self.changed(place, on_change="reset")
        assert place.newest().own.lineage == 1
        assert sum(row[2] for row in place.delivered()) == 24  # the sink keeps what it had
        place.shop.sell(1)
        self.changed(place, on_change="reset")  # unchanged now: goes on
        assert place.newest().own.lineage == 1
        assert sum(row[2] for row in place.delivered()) == 36

    def test_a_new_sink_is_a_change(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        pipeline = place.pipeline()
        pipeline.sink("archive", FileSink(place.root / "archive"))
        with pytest.raises(Invalid, match="sink 'archive' is new"):
            place.run(pipeline)


def test_epochs_are_told_of_though_nobody_waits_for_the_end(place: Place) -> None:
    told: list[int] = []
    stop = watch(lambda event: told.append(event.epoch) if isinstance(event, EpochReport) else None)
    pipeline = place.pipeline()
    orders = pipeline.source("orders", place.shop.orders(place.spark))
    pipeline.sink("files", FileSink(place.out))
    try:
        run = pipeline.start(revenue(orders), output_mode="update", trigger={"processingTime": "0 seconds"})
        deadline = time.monotonic() + 120
        while not told:
            place.shop.sell(1)
            epochs = run.epochs
            while run.epochs == epochs:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert run.stop(60)
    finally:
        stop()
    assert told == list(range(1, told[-1] + 1))
    newest = holdfast.open_store(place.store).load_latest()
    assert newest is not None
    assert newest.own.runtime["last_epoch"]["epoch"] >= 1


def test_a_second_driver_takes_over_and_the_first_is_fenced(place: Place) -> None:
    place.shop.sell(1)
    pipeline = place.pipeline()
    orders = pipeline.source("orders", place.shop.orders(place.spark))
    pipeline.sink("files", FileSink(place.out))
    run = pipeline.start(revenue(orders), output_mode="update", trigger={"processingTime": "0 seconds"})
    while run.epochs == 0:
        assert not run.await_termination(0.05)
    with pytest.raises(Invalid, match="is running already"):
        pipeline.start(revenue(orders), output_mode="update")
    holdfast.open_store(place.store).claim("another driver")
    place.shop.sell(1)
    with pytest.raises(Fenced, match="another driver"):
        run.await_termination(60)
    place.run()
    assert sum(row[2] for row in place.delivered()) == 24


def test_what_spark_writes_after_a_takeover_does_not_reach_the_successor(place: Place) -> None:
    """The first driver never looks at its lease: its Spark is in the middle of a batch until the very end."""
    place.shop.sell(1)
    is_held, is_inside, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def wait(frame: DataFrame) -> DataFrame:
        if is_held.is_set():
            is_inside.set()
            may_go_on.wait(120)
        return frame

    pipeline = place.pipeline()
    pipeline.sink("files", FileSink(place.out), view=wait)
    orders = pipeline.source("orders", place.shop.orders(place.spark))
    run = pipeline.start(revenue(orders), output_mode="update", trigger={"processingTime": "0 seconds"})
    while run.epochs == 0:
        assert not run.await_termination(0.05)
    is_held.set()
    place.shop.sell(1)
    assert is_inside.wait(60)
    store = holdfast.open_store(place.store)
    successor = fence_workdir(pipeline.workdir, store.claim("another driver").generation, store.check_lease)
    before = dict(successor.spark_checkpoint.files())
    may_go_on.set()
    with pytest.raises(Fenced, match="another driver"):
        run.await_termination(120)
    assert dict(successor.spark_checkpoint.files()) == before
    assert "offsets/1" in before
    place.run()
    assert sum(row[2] for row in place.delivered()) == 24
