"""A pipeline as its user sees it: what it delivers, what it records, what it tells."""

from __future__ import annotations

import base64
import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from revenue_place import ONCE, Place, RefusingSink

import holdfast
from holdfast.errors import Invalid, Unavailable
from holdfast.sinks import RowsRefused
from holdfast.sinks.files import FileSink
from holdfast.sinks.function import FunctionSink
from holdfast.spark import EpochReport, Pipeline, watch
from pipeline.shop import revenue, rows
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAST_WATERMARK = {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
"""An epoch without rows at the end of a run takes up the watermark of the last one with rows."""


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


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

    def test_a_suspicion_ends_with_the_first_epoch_that_goes_through(self, place: Place) -> None:
        pipeline = place.pipeline()

        def view(frame: DataFrame) -> DataFrame:
            if pipeline.workdir.home.exists():  # not yet when the sinks are prepared
                pipeline.workdir.mark_suspect("an earlier failure")
            return frame

        pipeline.sink("looks", FileSink(place.root / "looks"), view=view)
        place.shop.sell(1)
        place.run(pipeline)
        assert rows(place.root / "looks", "shop")
        assert pipeline.workdir.suspect_reason() is None


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
