"""A pipeline's chain of lives, each ended by SIGKILL at a step that is named beforehand."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orders import (
    Revenue,
    check_nothing_is_left_over,
    check_sinks_at_the_end,
    check_sinks_so_far,
    files_by_epoch,
    make_orders,
    revenue_by_epoch,
    table_rows,
    write_orders,
)

from holdfast.steps import Phase
from holdfast.testing.crash import Event, KilledRun, Moment, kill_at, record

WORKS = Path(__file__).with_name("works.py")
LIFE = 240.0
DECIDED = Event("epoch.decide", "end")

FIRST_START = ("sink.claim", "delta.create")
"""Steps that only the very first life takes."""

START = ("sink.prepare", "lease.claim", "sink.recover")
REBUILD = ("workdir.fill", "workdir.discard", "workdir.publish")
"""Steps of a life that finds its workdir gone or damaged."""

EPOCH = (
    "sink.stage",
    "sink.write",
    "sink.sync",
    "epoch.capture",
    "capture.pack",
    "batch.create",
    "directory.make",
    "file.write",
    "file.fill",
    "file.sync",
    "file.link",
    "directory.sync",
    "epoch.decide",
    "manifest.create",
    "pointer.advance",
    "file.rename",
    "sink.commit",
    "sink.publish",
    "sink.publish-sync",
    "delta.merge",
    "delta.sync",
    "sink.discard",
    "epoch.settle",
    "manifest.update",
    "checkpoints.delete",
    "directory.remove",
    "file.remove",
)
EMPTY_EPOCH = ("delta.commit",)
"""Steps of an epoch that changes no row: one whose orders are all late, and the last one."""

ALL = (*FIRST_START, *START, *REBUILD, *EPOCH, *EMPTY_EPOCH)


def moments(names: Sequence[str], phases: Mapping[str, Phase]) -> list[Moment]:
    """Where to die, in the order of the lives: the first start, then epochs with recoveries among them."""
    first, recoveries, epochs, last = (
        [name for name in kind if name in names] for kind in (FIRST_START, (*START, *REBUILD), EPOCH, EMPTY_EPOCH)
    )
    for place, name in enumerate(recoveries):
        epochs.insert(2 + 3 * place, name)
    return [
        Moment(Event(name, phases[name]), since=DECIDED if name in (*EPOCH, *EMPTY_EPOCH) else None)
        for name in (*first, *epochs, *last)
    ]


class Undisturbed:
    """The same pipeline without any death, run once for all who compare with it, and the classes that its JVM loaded.

    Whoever comes first runs it. The others wait only when they need its rows.
    """

    def __init__(self, shared: Path, files: int, *, seed: int = 0) -> None:
        self.orders = make_orders(files, seed=seed)
        self.epochs = revenue_by_epoch(self.orders)
        self.folder = shared / f"{files}-{seed}"
        self.folder.mkdir(exist_ok=True)
        self.input = self.folder / "orders"
        self.root = self.folder / "undisturbed"
        self.archive = shared / "classes.jsa"

    def begin(self) -> None:
        """Run it, unless somebody else does."""
        with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB) as is_mine:
            if is_mine and not self.root.exists():
                self.write_input()
                self._run()
        while not (self.input / f"{len(self.orders) - 1:05}.json").exists():  # somebody else is about to write it
            time.sleep(0.01)

    def write_input(self) -> None:
        """The orders alone, for whoever needs no rows to compare with."""
        write_orders(self.input, self.orders)

    def rows(self) -> tuple[dict[int, list[Revenue]], list[Revenue]]:
        """What its sinks hold: files by epoch, and the table."""
        with self._locked(fcntl.LOCK_EX):
            return files_by_epoch(self.root / "files"), table_rows(self.root / "table")

    def _run(self) -> None:
        began = time.monotonic()
        arguments = {"root": str(self.root), "orders": str(self.input), "archive": str(self.archive)}
        record(f"{WORKS}:revenue", timeout=2 * LIFE, makes_archive=not self.archive.exists(), **arguments)
        print(f"{time.monotonic() - began:6.1f} s  undisturbed")
        check_sinks_at_the_end(self.root, self.epochs)  # the tests themselves are right about what is due

    @contextmanager
    def _locked(self, how: int) -> Iterator[bool]:
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, how)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(handle)


class Chain:
    """One pipeline and the deaths it died."""

    def __init__(self, root: Path, undisturbed: Undisturbed, provider: str, work: str = "revenue") -> None:
        self.root = root
        self.undisturbed = undisturbed
        self.provider = provider
        self.work = f"{WORKS}:{work}"
        self.died_at: list[Event] = []
        self.seen: set[str] = set()

    def live(self, at: Moment) -> KilledRun:
        """One life, which must end exactly there."""
        began = time.monotonic()
        run = kill_at(self.work, at, timeout=LIFE, **self._arguments())
        self.seen |= {event.name for event in run.events}
        assert (run.killed, run.event) == (True, at.event), f"after {len(self.died_at)} lives"
        self.died_at.append(at.event)
        told = [line.removeprefix("epoch ") for line in run.acknowledged]
        print(f"{time.monotonic() - began:6.1f} s  {at.event.name} {at.event.phase}, epochs: {' '.join(told)}")
        return run

    def live_to_the_end(self) -> None:
        self.seen |= {event.name for event in record(self.work, timeout=LIFE, **self._arguments())}

    def lose_workdir(self) -> None:
        for workdir in (self.root / "store").glob("workdir*"):
            shutil.rmtree(workdir)

    def check_so_far(self, run: KilledRun) -> None:
        """Readers see whole epochs only, and at least those that were reported as done."""
        visible = check_sinks_so_far(self.root, self.undisturbed.epochs)
        assert visible >= max((int(line.removeprefix("epoch ")) for line in run.acknowledged), default=0)

    def check(self) -> None:
        """It ended as if nobody had ever died."""
        check_sinks_at_the_end(self.root, self.undisturbed.epochs)
        files, table = self.undisturbed.rows()
        assert without_empty(files_by_epoch(self.root / "files")) == without_empty(files)
        assert table_rows(self.root / "table") == table
        check_nothing_is_left_over(self.root)

    def _arguments(self) -> dict[str, Any]:
        return {
            "root": str(self.root),
            "orders": str(self.undisturbed.input),
            "provider": self.provider,
            "archive": str(self.undisturbed.archive),
        }


def without_empty(epochs: dict[int, list[Revenue]]) -> dict[int, list[Revenue]]:
    return {epoch: rows for epoch, rows in epochs.items() if rows}
