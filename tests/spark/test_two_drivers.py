"""Two drivers of one pipeline: one goes on, the other stops and says so, and the sinks do not notice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from orders import (
    check_nothing_is_left_over,
    check_sinks_at_the_end,
    check_sinks_so_far,
    make_orders,
    revenue_by_epoch,
    write_orders,
)

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

FENCED = 5
FILE = Path(__file__).with_name("driver.py")
PATIENCE = 240.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


class Driver:
    """`holdfast run` in a process group of its own."""

    def __init__(self, root: Path, name: str, provider: str, freeze_at: tuple[str, str, int] | None = None) -> None:
        arguments = {"root": str(root), "orders": str(root.parent / "orders"), "provider": provider}
        command = [sys.executable, "-m", "holdfast", "run", str(FILE), json.dumps(arguments | {"freeze_at": freeze_at})]
        paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self.log = root.parent / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def wait_until_frozen(self) -> None:
        wait_until(self._is_frozen, f"the driver freezes\n{self.said}")

    def _is_frozen(self) -> bool:
        assert self.process.poll() is None, f"it ended instead of freezing\n{self.said}"
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].startswith("T")

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Drivers:
    """Drivers of one pipeline, all gone at the end of the test."""

    def __init__(self, folder: Path, files: int) -> None:
        orders = make_orders(files)
        write_orders(folder / "orders", orders)
        self.epochs = revenue_by_epoch(orders)
        self.root = folder / "pipeline"
        self.root.mkdir()
        self.started: list[Driver] = []

    def start(self, provider: str, freeze_at: tuple[str, str, int] | None = None) -> Driver:
        self.started.append(Driver(self.root, f"driver-{len(self.started) + 1}", provider, freeze_at))
        return self.started[-1]

    @property
    def visible(self) -> int:
        return len(list((self.root / "files").glob("epoch=*")))

    def check(self) -> None:
        check_sinks_at_the_end(self.root, self.epochs)
        check_nothing_is_left_over(self.root)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    found = Drivers(tmp_path, files=10)
    yield found
    for driver in found.started:
        driver.kill()


FROZEN_AT = [
    ("hdfs", ("sink.stage", "begin", 3)),
    ("rocksdb-changelog", ("manifest.create", "begin", 2)),
    ("hdfs", ("sink.publish", "begin", 2)),
    ("rocksdb-changelog", ("delta.merge", "begin", 2)),
]


@pytest.mark.parametrize(("provider", "moment"), FROZEN_AT, ids=[moment[0] for _, moment in FROZEN_AT])
def test_a_frozen_driver_wakes_up_after_another_took_over(
    provider: str, moment: tuple[str, str, int], drivers: Drivers
) -> None:
    frozen = drivers.start(provider, freeze_at=moment)
    frozen.wait_until_frozen()
    asleep_at = drivers.visible
    other = drivers.start(provider)
    wait_until(lambda: drivers.visible >= asleep_at + 3, f"the other driver is at work\n{other.said}")
    frozen.thaw()
    assert frozen.wait() == FENCED, frozen.said
    assert "taken over" in frozen.said
    check_sinks_so_far(drivers.root, drivers.epochs)
    assert other.wait() == 0, other.said
    drivers.check()


def test_two_drivers_started_together(drivers: Drivers) -> None:
    both = [drivers.start("hdfs") for _ in range(2)]
    codes = sorted(driver.wait() for driver in both)
    assert codes == [0, FENCED], "\n".join(driver.said for driver in both)
    drivers.check()
