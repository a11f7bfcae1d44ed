"""Two drivers of one pipeline: one goes on, the other stops and says so, and the sinks do not notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from drivers import FENCED, Drivers, FreezeAt, wait_until
from orders import check_s3_so_far, check_sinks_so_far

from maven import require_jars
from servers.s3 import S3Server

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    with Drivers(tmp_path, files=5) as found:
        yield found


def frozen_at(provider: str, *moment: str | int, only_in_soak: bool = False) -> ParameterSet:
    return pytest.param(provider, moment, id=str(moment[0]), marks=[pytest.mark.soak] if only_in_soak else [])


@pytest.mark.parametrize(
    ("provider", "moment"),
    [
        frozen_at("hdfs", "sink.stage", "begin", 3),
        frozen_at("rocksdb-changelog", "manifest.create", "begin", 2, only_in_soak=True),
        frozen_at("hdfs", "sink.publish", "begin", 2, only_in_soak=True),
        frozen_at("rocksdb-changelog", "delta.merge", "begin", 2, only_in_soak=True),
    ],
)
def test_a_frozen_driver_wakes_up_after_another_took_over(provider: str, moment: FreezeAt, drivers: Drivers) -> None:
    """It wakes up while the other one is at work, with whatever its JVM was about to write."""
    frozen = drivers.start(freeze_at=moment, provider=provider)
    frozen.wait_until_frozen()
    asleep_at = drivers.visible
    other = drivers.start(provider=provider)
    wait_until(lambda: drivers.visible >= asleep_at + 2, lambda: f"the other driver is at work\n{other.said}")
    frozen.thaw()
    assert frozen.wait() == FENCED, frozen.said
    assert "taken over" in frozen.said
    check_sinks_so_far(drivers.root, drivers.epochs)
    assert other.wait() == 0, other.said
    drivers.check()


def test_two_drivers_started_together(drivers: Drivers) -> None:
    both = [drivers.start() for _ in range(2)]
    codes = sorted(driver.wait() for driver in both)
    assert codes == [0, FENCED], "\n".join(driver.said for driver in both)
    drivers.check()


@pytest.mark.parametrize(
    ("provider", "moment"),
    [
        frozen_at("hdfs", "epoch.capture", "begin", 3),
        frozen_at("rocksdb-changelog", "workdir.enter", "end", 1, only_in_soak=True),
        frozen_at("rocksdb-changelog", "manifest.create", "begin", 2, only_in_soak=True),
        frozen_at("hdfs", "epoch.decide", "end", 2, only_in_soak=True),
        frozen_at("rocksdb-changelog", "files.choose", "begin", 2, only_in_soak=True),
        frozen_at("hdfs", "files.copy", "begin", 2, only_in_soak=True),
        frozen_at("rocksdb-changelog", "files.log", "begin", 2, only_in_soak=True),
        frozen_at("hdfs", "delta.merge", "begin", 2, only_in_soak=True),
        frozen_at("rocksdb-changelog", "manifest.update", "begin", 2, only_in_soak=True),
    ],
)
def test_a_frozen_driver_wakes_up_after_another_took_over_on_s3(
    provider: str, moment: FreezeAt, drivers: Drivers, s3_server: S3Server
) -> None:
    """Before the decision, after it, and in a sink's commit. Its Spark goes on writing where nobody reads any more."""
    require_jars("s3a")
    drivers.go_to(s3_server)
    frozen = drivers.start(freeze_at=moment, provider=provider)
    frozen.wait_until_frozen()
    asleep_at = drivers.visible
    other = drivers.start(provider=provider)
    wait_until(lambda: drivers.visible >= asleep_at + 2, lambda: f"the other driver is at work\n{other.said}")
    frozen.thaw()
    assert frozen.wait() == FENCED, frozen.said
    assert "taken over" in frozen.said
    check_s3_so_far(drivers.root, drivers.epochs)
    assert other.wait() == 0, other.said
    drivers.check()
