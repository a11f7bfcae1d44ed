"""A cluster whose processes share nothing but a bucket, and any of them is killed at any moment, the S3 server too.

What is killed, and when, is drawn from a seed; how far everything has come by then is not.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from drivers import Driver, Drivers, wait_until
from orders import check_place_on_s3, check_s3_so_far

from holdfast.errors import OutcomeUnknown, Unavailable
from maven import require_jars
from servers.process import Kept
from servers.s3 import seaweedfs_server
from servers.spark_cluster import executors_of, spark_cluster

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a worker disks of its own"),
]

WORKERS = 2
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.cores.max": str(WORKERS),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # each end of a run would have an epoch of its own
}
AHEAD = 3
"""How many files of orders wait at a time."""
STARTS = 5
"""How often a driver is started at the end that has nothing to fear any more."""
ENDS = {0, Unavailable.exit_code, OutcomeUnknown.exit_code}
"""How a driver may end that is not killed: done, or with an error that asks for another start."""


class Cluster:
    """Everything that a pipeline runs on."""

    def __init__(self, stack: ExitStack, folder: Path, *, files: int, seed: int, provider: str) -> None:
        self.chance = random.Random(seed)
        self.drivers = stack.enter_context(Drivers(folder, files, seed=seed, provider=provider))
        self.server = stack.enter_context(seaweedfs_server())
        self.drivers.go_to(self.server)
        self.cluster = stack.enter_context(spark_cluster())
        self.workers = [self._new_worker() for _ in range(WORKERS)]
        self.arrived = 0
        self.restarts = 0
        self._driver: Driver | None = None

    def arrive(self) -> None:
        """More orders come into the bucket, so that there is something to do, and not much."""
        assert self.drivers.bucket is not None
        for path in sorted((self.drivers.folder / "orders").iterdir())[self.arrived : self.drivers.visible + AHEAD]:
            self.drivers.bucket.objects.create(f"orders/{path.name}", [path.read_bytes()])
            self.arrived += 1

    @property
    def driver(self) -> Driver:
        """The driver; another one if the last one has ended."""
        if self._driver is not None and (code := self._driver.process.poll()) is not None:
            assert code in ENDS, self._driver.said
            self._driver = None
        if self._driver is None:
            assert self.drivers.bucket is not None
            orders = f"s3a://{self.drivers.bucket.name}/orders"
            self._driver = self.drivers.start(orders=orders, master=self.cluster.master, **SETTINGS)
            self.restarts += 1
        return self._driver

    def kill_driver(self) -> None:
        self.driver.kill()
        self._driver = None

    def kill_executor(self) -> None:
        found: list[int] = []

        def is_one_there() -> bool:
            assert self.driver
            found[:] = [pid for worker in self.workers for pid in executors_of(worker)]
            return bool(found)

        wait_until(is_one_there, lambda: f"an executor is there\n{self.driver.said}")
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(found), signal.SIGKILL)

    def kill_worker(self) -> None:
        self.workers.pop(self.chance.randrange(len(self.workers))).end()
        self.workers.append(self._new_worker())

    def kill_server(self) -> None:
        self.server.kill()
        time.sleep(self.chance.random() * 2)
        self.server.start()

    def kill_at_random(self, victims: list[str]) -> None:
        kills: dict[str, Callable[[], None]] = {
            "driver": self.kill_driver,
            "executor": self.kill_executor,
            "worker": self.kill_worker,
            "server": self.kill_server,
        }
        for number, victim in enumerate(victims, 1):
            self.arrive()
            visible = self.drivers.visible
            if self.chance.random() < 0.7:  # else while it starts, or is at what it was at
                wait_until(
                    lambda visible=visible: self.driver and self.drivers.visible > visible,
                    lambda: f"it moves\n{self.driver.said}",
                )
            time.sleep(self.chance.random() * 3)
            assert self.driver
            kills[victim]()
            seen = check_s3_so_far(self.drivers.root, self.drivers.epochs)
            print(f"        kill {number}: {victim}, {seen} epochs visible, {self.restarts} drivers so far", flush=True)

    def end(self) -> None:
        """What has arrived is delivered, with nobody killed any more."""
        self.drivers.epochs = self.drivers.epochs[: self.arrived]
        codes = []
        while not codes or (codes[-1] != 0 and len(codes) < STARTS):
            codes.append(self.driver.wait())
        assert codes[-1] == 0, self.drivers.started[-1].said
        self._driver = None
        # One more, so that nothing is left of those that were killed.
        assert self.driver.wait() == 0, self.driver.said
        self.drivers.check()
        check_place_on_s3(self.drivers.root)
        assert self.drivers.bucket is not None
        newest = self.drivers.bucket.store().load_latest()
        assert newest is not None
        assert any("nodes/" in batch.key for batch in newest.needed_batches), "state was packed on executors"

    def _new_worker(self) -> Kept:
        return self.cluster.add_worker(hidden=[self.drivers.root])


def drawn(seed: int, rounds: int) -> list[str]:
    """Each of them once a round, in an order of its own."""
    chance = random.Random(seed)
    return [name for _ in range(rounds) for name in chance.sample(["driver", "executor", "worker", "server"], 4)]


@pytest.mark.soak
@pytest.mark.parametrize(("provider", "seed"), [("rocksdb-changelog", 1), ("hdfs", 2)])
def test_killed_at_any_moment(provider: str, seed: int, tmp_path: Path) -> None:
    require_jars("s3a")
    victims = drawn(seed, rounds=6)
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path, files=AHEAD * len(victims), seed=seed, provider=provider)
        cluster.kill_at_random(victims)
        cluster.end()
