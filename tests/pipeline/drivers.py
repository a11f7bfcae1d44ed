"""Drivers of one pipeline as users start them, with `holdfast run`, each in a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from buckets import Bucket, put_bucket
from orders import (
    check_nothing_is_left_over,
    check_s3_at_the_end,
    check_sinks_at_the_end,
    check_store,
    make_orders,
    revenue_by_epoch,
    write_orders,
)

from servers.s3 import S3Server

FENCED = 5
FILE = Path(__file__).with_name("driver.py")
PATIENCE = 300.0

FreezeAt = tuple[str, str, int]
"""A step, its phase, and for the how manieth time."""


def wait_until(condition: Callable[[], object], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what()}"
        time.sleep(0.02)


class Driver:
    """One driver, and what it has to say."""

    def __init__(self, log: Path, **arguments: Any) -> None:
        command = [sys.executable, "-m", "holdfast", "run", str(FILE), json.dumps(arguments)]
        paths = [str(FILE.parent), str(FILE.parent.parent)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
        self.log = log
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def wait_until_frozen(self) -> None:
        wait_until(self._is_frozen, lambda: f"the driver freezes\n{self.said}")

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
        """The end of it and of its JVM, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Drivers:
    """A pipeline with its orders and its drivers, who are all gone at the end of the block."""

    def __init__(self, folder: Path, files: int, *, seed: int = 0, **arguments: Any) -> None:
        self.folder = folder
        self.orders = make_orders(files, seed=seed)
        self.epochs = revenue_by_epoch(self.orders)
        self.root = folder / "pipeline"
        self.root.mkdir(parents=True)
        write_orders(folder / "orders", self.orders)
        self.started: list[Driver] = []
        self.bucket: Bucket | None = None
        """Where everything is, if it is not on the disk."""
        self._arguments = {"root": str(self.root), "orders": str(folder / "orders"), **arguments}

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self.started:
            driver.kill()

    def go_to(self, server: S3Server) -> None:
        """The pipeline has everything in a bucket."""
        self.bucket = put_bucket(self.root, server)
        self._arguments["work"] = "remote"

    def start(self, freeze_at: FreezeAt | None = None, **arguments: Any) -> Driver:
        log = self.folder / f"driver-{len(self.started) + 1}.log"
        self.started.append(Driver(log, **(self._arguments | arguments | {"freeze_at": freeze_at})))
        return self.started[-1]

    @property
    def visible(self) -> int:
        """How many epochs readers of the files see."""
        if self.bucket:
            return self.bucket.visible
        return len(list((self.root / "files").glob("epoch=*")))

    def check(self) -> None:
        if self.bucket:
            check_s3_at_the_end(self.root, self.epochs)
            assert self.bucket.staged() == []
            check_store(self.bucket.store())
            return
        check_sinks_at_the_end(self.root, self.epochs)
        check_nothing_is_left_over(self.root, was_taken_over=True)
