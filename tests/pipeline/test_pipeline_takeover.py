"""A pipeline that another driver takes over while it runs."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from revenue_place import Place

import holdfast
from holdfast.checkpoints.heartbeat import observe_driver
from holdfast.checkpoints.lease import current
from holdfast.errors import Fenced, Invalid
from holdfast.pipeline import heartbeat
from holdfast.sinks.files import FileSink
from holdfast.spark import Notice, Pipeline, watch
from pipeline.shop import revenue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SELF = f"{socket.gethostname()}:{os.getpid()}"
"""Both drivers of a test are this process."""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Supervised:
    """A supervised driver in a thread of its own, with a session of its own, that runs until it is stopped."""

    def __init__(self, place: Place) -> None:
        self.pipeline = Pipeline("revenue", checkpoints=place.store)
        orders = self.pipeline.source("orders", place.shop.orders(place.spark.newSession()))
        self.pipeline.sink("files", FileSink(place.out))
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(revenue(orders),), daemon=True)
        self.thread.start()

    def _run(self, frame: Any) -> None:
        try:
            self.pipeline.run(frame, output_mode="update", trigger={"processingTime": "0 seconds"}, restarts=5)
        except BaseException as error:
            self.error = error

    @property
    def epochs(self) -> int:
        run = self.pipeline._run
        return run.epochs if run else 0

    def stop(self) -> None:
        assert self.pipeline._run is not None
        self.pipeline._run.ask_to_stop()
        self.thread.join(120)
        assert not self.thread.is_alive()


def state_of(place: Place) -> tuple[str, int]:
    _, driver = observe_driver(holdfast.open_store(place.store).objects, time.time())
    assert driver is not None
    return driver.state, driver.generation


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


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
    successor = pipeline.workdir.fenced(store.claim("another driver").generation, store.check_lease)
    before = dict(successor.spark_checkpoint.files())
    may_go_on.set()
    with pytest.raises(Fenced, match="another driver"):
        run.await_termination(120)
    assert dict(successor.spark_checkpoint.files()) == before
    assert "offsets/1" in before
    place.run()
    assert sum(row[2] for row in place.delivered()) == 24


def test_of_two_supervised_drivers_the_first_stays_down(place: Place) -> None:
    """Taking the pipeline back would fence the other one, and so on for ever."""
    place.shop.sell(1)
    told: list[Notice] = []
    stop_watching = watch(lambda event: told.append(event) if isinstance(event, Notice) else None)
    first = Supervised(place)
    wait_until(lambda: first.epochs == 1)
    assert state_of(place) == ("running", 1)
    began = current(holdfast.open_store(place.store).objects)
    assert began is not None
    second = Supervised(place)
    first.thread.join(120)
    assert not first.thread.is_alive()
    assert isinstance(first.error, Fenced)
    assert f"taken over by {SELF}, running since 2" in first.error.message
    place.shop.sell(1)
    wait_until(lambda: sum(row[2] for row in place.delivered()) == 24)
    assert state_of(place) == ("running", 2)
    second.stop()
    stop_watching()
    assert second.error is None
    assert state_of(place) == ("stopped", 2)
    words = f"took over from {SELF}, running since {began.since} (generation 1), which was alive: it is fenced now"
    assert [notice.level for notice in told if notice.text.startswith(words)] == ["warning"]
    assert not any("starting again" in notice.text for notice in told)


def test_a_driver_without_anything_to_do_notices_that_it_was_taken_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.shop.sell(1)
    pipeline = place.pipeline()
    orders = pipeline.source("orders", place.shop.orders(place.spark))
    pipeline.sink("files", FileSink(place.out))
    monkeypatch.setattr(heartbeat.HeartbeatThread.__init__, "__kwdefaults__", {"every": 0.05, "clock": time.time})
    run = pipeline.start(revenue(orders), output_mode="update", trigger={"processingTime": "1 hour"})
    while run.epochs == 0:
        assert not run.await_termination(0.05)
    other = holdfast.open_store(place.store)
    successor = heartbeat.HeartbeatThread(other.objects, other.claim("another driver"))
    successor.start()
    with pytest.raises(Fenced, match="taken over by another driver"):
        assert run.await_termination(60)
    assert state_of(place) == ("running", 2)
    successor.stop(("stopped", None))


def test_a_start_that_fails_says_so(place: Place) -> None:
    place.shop.sell(1)
    place.run()
    assert state_of(place) == ("stopped", 1)
    shutil.rmtree(place.out)
    with pytest.raises(holdfast.errors.HoldfastError) as caught:
        place.run()
    _, driver = observe_driver(holdfast.open_store(place.store).objects, time.time())
    assert driver is not None
    assert (driver.state, driver.generation, driver.reason) == ("failed", 2, caught.value.code)
