"""Bad days of HDFS, for pipelines with checkpoints, workdir and files there.

Each ends in a clear error within seconds, or is waited for. Nothing is lost, nothing is doubled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.base.steps import Phase
from holdfast.errors import HoldfastError, Unavailable
from pipeline.remote_shop import RemoteShop, when
from servers.hdfs import HdfsServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

PARTS = ("checkpoints", "workdir", "files")
NewShop = Callable[..., RemoteShop]
BAD_DAYS = {"hdfs.safe-mode": ("safemode on", "safemode off"), "hdfs.full": ("fill", "free")}
MOMENTS: list[tuple[str, Phase]] = [
    ("epoch.capture", "begin"),
    ("manifest.create", "begin"),
    ("manifest.create", "end"),
    ("sink.commit", "begin"),
]


@pytest.fixture
def new_shop(spark: SparkSession, tmp_path: Path, hdfs: HdfsServer) -> Iterator[NewShop]:
    folders = (tmp_path / str(number) for number in range(100))
    yield lambda *parts: RemoteShop(spark, next(folders), hdfs.new_folder(), *parts)
    for _, (_, end) in BAD_DAYS.items():
        hdfs.tell(end)


@pytest.mark.parametrize("code", BAD_DAYS)
def test_a_start_is_told_by_name_wherever_it_is_met(hdfs: HdfsServer, new_shop: NewShop, code: str) -> None:
    begin, end = BAD_DAYS[code]
    for part in PARTS:
        shop = new_shop(part)
        shop.sell()
        hdfs.tell(begin)
        with pytest.raises(Unavailable) as caught:
            shop.run()
        hdfs.tell(end)
        assert caught.value.code == code, (part, str(caught.value))
        assert shop.place in str(caught.value)
        assert caught.value.unchanged
        assert caught.value.next_step


@pytest.mark.parametrize(
    ("code", "step", "phase"),
    [
        pytest.param(code, *moment, marks=[] if (code, place) == ("hdfs.full", 0) else [pytest.mark.soak])
        for code in BAD_DAYS
        for place, moment in enumerate(MOMENTS)
    ],
)
def test_in_mid_run(hdfs: HdfsServer, new_shop: NewShop, code: str, step: str, phase: Phase) -> None:
    """Also where Spark meets it first, while it writes its state."""
    begin, end = BAD_DAYS[code]
    shop = new_shop(*PARTS)
    shop.sell(2)
    with when(step, phase, lambda: hdfs.tell(begin), time=2), pytest.raises(HoldfastError) as caught:
        shop.run()
    hdfs.tell(end)
    assert caught.value.code in (code, "object.outcome-unknown"), str(caught.value)
    assert caught.value.unchanged
    assert caught.value.next_step
    shop.run()
    shop.check()


@pytest.mark.soak
@pytest.mark.parametrize(("step", "phase"), MOMENTS)
@pytest.mark.parametrize("code", BAD_DAYS)
def test_one_that_passes_is_waited_for(hdfs: HdfsServer, new_shop: NewShop, code: str, step: str, phase: Phase) -> None:
    begin, end = BAD_DAYS[code]
    shop = new_shop(*PARTS)
    shop.sell(3)
    over = threading.Timer(6, lambda: hdfs.tell(end))

    def act() -> None:
        hdfs.tell(begin)
        over.start()

    try:
        with when(step, phase, act, time=2):
            shop.run(restarts=3)
    finally:
        over.join()
    assert shop.restarts
    shop.check()


@pytest.mark.soak
@pytest.mark.parametrize(("step", "phase"), MOMENTS)
def test_a_name_node_is_killed_in_mid_epoch_and_comes_back(
    hdfs: HdfsServer, new_shop: NewShop, step: str, phase: Phase
) -> None:
    shop = new_shop(*PARTS)
    shop.sell(3)
    back = threading.Timer(3, hdfs.start)

    def kill() -> None:
        hdfs.kill()
        back.start()

    try:
        with when(step, phase, kill, time=2):
            _run_until_done(shop)
    finally:
        back.join()
    shop.check()


def _run_until_done(shop: RemoteShop) -> None:
    """As whatever starts a driver again when it has ended."""
    for _ in range(20):
        try:
            shop.run(restarts=3)
            return
        except HoldfastError as failed:
            error = failed
        assert error.next_step, str(error)
        time.sleep(2)
    raise AssertionError("it never came to its end")
