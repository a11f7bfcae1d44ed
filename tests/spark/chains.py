"""A pipeline's chain of lives, each ended by SIGKILL at a step that is named beforehand."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

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
from holdfast.testing.crash import Event, Moment, kill_at, record

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
"""Steps of an epoch that changes no row: the last one, among others."""

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


class Chain:
    """One pipeline, the input it reads, and the deaths it died."""

    def __init__(self, folder: Path, provider: str, files: int, *, seed: int = 0) -> None:
        self.provider = provider
        self.orders = make_orders(files, seed=seed)
        self.epochs = revenue_by_epoch(self.orders)
        self.input = folder / "orders"
        self.archive = folder / "classes.jsa"
        self.root = folder / "killed"
        self.reference = folder / "undisturbed"
        self.died_at: list[Event] = []
        self.seen: set[str] = set()
        write_orders(self.input, self.orders)

    def run_undisturbed(self) -> None:
        began = time.monotonic()
        events = record(self._work(), timeout=LIFE, **self._arguments(self.reference))
        print(f"{time.monotonic() - began:6.1f} s  undisturbed")
        self.seen |= {event.name for event in events}
        check_sinks_at_the_end(self.reference, self.epochs)  # the tests themselves are right about what is due

    def live(self, at: Moment) -> None:
        """One life, which must end exactly there."""
        began = time.monotonic()
        run = kill_at(self._work(), at, timeout=LIFE, **self._arguments(self.root))
        self.seen |= {event.name for event in run.events}
        assert (run.killed, run.event) == (True, at.event), f"after {len(self.died_at)} lives"
        self.died_at.append(at.event)
        visible = check_sinks_so_far(self.root, self.epochs)
        told = [int(line.removeprefix("epoch ")) for line in run.acknowledged]
        print(f"{time.monotonic() - began:6.1f} s  {at.event.name} {at.event.phase}: epochs {told}, {visible} visible")
        assert visible >= max(told, default=0)

    def live_to_the_end(self) -> None:
        events = record(self._work(), timeout=LIFE, **self._arguments(self.root))
        self.seen |= {event.name for event in events}

    def lose_workdir(self) -> None:
        workdir = self.root / "store" / "workdir"
        if workdir.exists():  # a life may have ended between taking the old one away and putting up the new one
            shutil.rmtree(workdir)

    def check(self) -> None:
        check_sinks_at_the_end(self.root, self.epochs)
        killed, undisturbed = (files_by_epoch(root / "files") for root in (self.root, self.reference))
        assert without_empty(killed) == without_empty(undisturbed)
        assert table_rows(self.root / "table") == table_rows(self.reference / "table")
        check_nothing_is_left_over(self.root)

    def _work(self) -> str:
        return f"{WORKS}:revenue"

    def _arguments(self, root: Path) -> dict[str, str]:
        return {
            "root": str(root),
            "orders": str(self.input),
            "provider": self.provider,
            "archive": str(self.archive),
        }


def without_empty(epochs: dict[int, list[Revenue]]) -> dict[int, list[Revenue]]:
    return {epoch: rows for epoch, rows in epochs.items() if rows}
