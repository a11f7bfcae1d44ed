"""Pipelines that live in chains: each life is ended by SIGKILL at a step that is named beforehand."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from orders import (
    check_hdfs_at_the_end,
    check_hdfs_so_far,
    check_index_at_the_end,
    check_index_so_far,
    check_luck,
    check_nothing_is_left_over,
    check_s3_at_the_end,
    check_s3_so_far,
    check_sinks_at_the_end,
    check_sinks_so_far,
    make_orders,
    revenue_by_epoch,
    write_orders,
)
from together import ALL_HELD, Member

from holdfast.base.steps import Phase
from holdfast.testing.faults.crash import Moment, StepEvent, kill_at

HERE = Path(__file__).parent
LIFE = 400.0
STAGED = StepEvent("sink.stage", "begin")
"""An epoch is under way that nobody has decided yet."""
DECIDED = StepEvent("epoch.decide", "end")

FIRST_START = ("sink.claim", "delta.create")
"""Steps that only the very first life takes."""

START = ("sink.prepare", "lease.claim", "workdir.enter", "sink.recover")
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


def moments(names: Sequence[str], phases: Mapping[str, Phase], since: StepEvent = DECIDED) -> list[Moment]:
    """Where to die, in the order of the lives: the first start, then epochs with recoveries among them.

    In an epoch it is the first time after `since`; the first of these lives decides an epoch for the others to recover.
    """
    first, recoveries, epochs, last = (
        [name for name in kind if name in names] for kind in (FIRST_START, (*START, *REBUILD), EPOCH, EMPTY_EPOCH)
    )
    for place, name in enumerate(recoveries):
        epochs.insert(2 + 3 * place, name)
    found = []
    after: StepEvent | None = DECIDED
    for name in (*first, *epochs, *last):
        event = StepEvent(name, phases[name])
        is_in_epoch = name in (*EPOCH, *EMPTY_EPOCH)
        found.append(Moment(event, since=after if is_in_epoch and event != after else None))
        after = since if is_in_epoch else after
    return found


SO_FAR = {
    "revenue": check_sinks_so_far,
    "remote": check_s3_so_far,
    "on-hdfs": check_hdfs_so_far,
    "indexed": check_index_so_far,
}
AT_THE_END = {
    "revenue": check_sinks_at_the_end,
    "remote": check_s3_at_the_end,
    "on-hdfs": check_hdfs_at_the_end,
    "indexed": check_index_at_the_end,
    "luck": check_luck,
}
"""What to hold against the sinks of a pipeline, by what it does."""


class Kind(NamedTuple):
    """What a pipeline does, and where it keeps its state."""

    work: str
    provider: str = "hdfs"


class Fleet:
    """Pipelines with the same orders that live in one process at a time, and the deaths they died."""

    def __init__(self, folder: Path, files: int, kinds: Mapping[str, Kind], *, seed: int = 0) -> None:
        self.folder = folder
        self.orders = make_orders(files, seed=seed)
        self.epochs = revenue_by_epoch(self.orders)
        self.seen: set[str] = set()
        self.died_at: dict[str, list[StepEvent]] = {name: [] for name in kinds}
        self._kinds = kinds
        write_orders(folder / "orders", self.orders)

    def root(self, name: str) -> Path:
        return self.folder / name

    def die_at(self, chains: Mapping[str, Sequence[Moment]]) -> None:
        """Life after life, each pipeline dies at the moments of its chain, in their order."""
        for due in itertools.zip_longest(*chains.values()):
            dying = {name: moment for name, moment in zip(chains, due, strict=True) if moment is not None}
            for name, moment in dying.items():
                if moment.event.name in REBUILD:
                    self.lose_workdir(name)
            self._live(dying)

    def lose_workdir(self, name: str) -> None:
        if self._kinds[name].work in ("remote", "on-hdfs"):
            return  # it is as good as lost: its place is not used again after a death
        shutil.rmtree(self.root(name) / "store" / "workdir")

    def end(self) -> None:
        """A last life, in which nobody dies: it ends as if nobody ever had."""
        self._live(dict.fromkeys(self._kinds))
        for name, kind in self._kinds.items():
            AT_THE_END[kind.work](self.root(name), self.epochs)
            check_nothing_is_left_over(self.root(name))

    def _live(self, moments: Mapping[str, Moment | None]) -> None:
        """One life of these pipelines, which must end exactly there, or at the end of the orders where that is None."""
        began = time.monotonic()
        members = {
            name: msgspec.to_builtins(Member(str(self.root(name)), *self._kinds[name], moment))
            for name, moment in moments.items()
        }
        arguments: dict[str, Any] = {"members": members, "orders": str(self.folder / "orders")}
        is_killed = any(moments.values())
        run = kill_at(
            f"{HERE / 'together.py'}:together",
            ALL_HELD if is_killed else 10**9,
            timeout=LIFE,
            **arguments,
        )
        assert run.killed == is_killed
        self.seen |= {event.name for event in run.events} - {ALL_HELD.event.name}
        for name, moment in moments.items():
            told = [line.removeprefix(f"{name} ") for line in run.acknowledged if line.startswith(f"{name} ")]
            done = [line.removeprefix("epoch ") for line in told if line.startswith("epoch ")]
            assert [line for line in told if not line.startswith("epoch ")] == ["held" if moment else "ended"]
            if moment:
                self.died_at[name].append(moment.event)
                print(f"        {name}: {moment.event.name} {moment.event.phase}, done {', '.join(done)}")
            self._check_so_far(name, max(map(int, done), default=0))
        print(f"{time.monotonic() - began:6.1f} s")

    def _check_so_far(self, name: str, done: int) -> None:
        """Readers see whole epochs only, and at least those that were reported as done."""
        if (check := SO_FAR.get(self._kinds[name].work)) is not None:
            assert check(self.root(name), self.epochs) >= done
