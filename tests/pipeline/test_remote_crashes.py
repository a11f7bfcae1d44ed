"""Pipelines with all they have on S3, or on HDFS, are killed at their steps there.

As in test_crash_matrix.py: each pipeline lives through a chain of deaths, and ends as if nobody had ever died.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from buckets import put_bucket
from chains import DECIDED, STAGED, Fleet, Kind
from orders import HDFS_NAMED

from holdfast.base.steps import Phase
from holdfast.testing.faults.crash import Moment, StepEvent
from maven import require_jars
from servers.hdfs import HdfsServer
from servers.s3 import S3Server

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]

FILES = 4
PROVIDERS = ("hdfs", "rocksdb-changelog")
PHASES: tuple[Phase, Phase] = ("begin", "end")

FIRST = ("sink.claim", "files.begin-log", "delta.create", "workdir.discard")
"""Steps that only the first start takes."""
START = ("sink.prepare", "lease.claim", "workdir.enter", "sink.recover")
REBUILD = ("workdir.fill", "workdir.publish")
BEFORE_DECISION = (
    "sink.stage",
    "sink.write",
    "files.seal",
    "sink.sync",
    "epoch.capture",
    "capture.pack",
    "batch.create",
    "object.create",
    "manifest.create",
)
AFTER_DECISION = (
    "pointer.advance",
    "object.update",
    "sink.commit",
    "sink.publish",
    "files.choose",
    "files.copy",
    "object.copy",
    "files.log",
    "delta.merge",
    "sink.discard",
    "object.delete",
    "epoch.settle",
    "manifest.update",
    "checkpoints.delete",
)
LAST = ("delta.commit", "files.trim-log")
"""Steps of an epoch that changes no row, and of one after which the log of files is trimmed: the twentieth."""
DECISION = "epoch.decide"
STEPS = (*FIRST, *START, *REBUILD, *BEFORE_DECISION, DECISION, *AFTER_DECISION, *LAST)
"""Every step that a pipeline takes whose checkpoints, workdir and sinks are in a bucket."""
OF_EACH_SINK = ("sink.prepare", "sink.recover", "sink.stage", "sink.commit", "sink.discard")
"""Steps that the file sink takes first, and then the Delta sink."""

ON_HDFS_START = (*START[1:], *REBUILD)
ON_HDFS_EPOCH = ("epoch.capture", "capture.pack", "batch.create", "object.create", "manifest.create")
ON_HDFS_AFTER = ("pointer.advance", "object.update", "sink.commit", "epoch.settle", "manifest.update")
ON_HDFS = ("sink.publish", "sink.publish-sync", "sink.discard", "hdfs.rename")
STEPS_ON_HDFS = (*ON_HDFS_START, *ON_HDFS_EPOCH, *ON_HDFS_AFTER, *ON_HDFS)


class Death(NamedTuple):
    """In an epoch after one that was decided, or in the start that recovers from it."""

    name: str
    phase: Phase
    nth: int = 1

    @property
    def moment(self) -> Moment:
        event = StepEvent(self.name, self.phase)
        since = None
        if self.name in BEFORE_DECISION or event == StepEvent(DECISION, "begin"):
            since = STAGED
        elif self.name in (*AFTER_DECISION, *LAST, *ON_HDFS):
            since = DECIDED
        return Moment(event, self.nth, since if event != since else None)


FIRST_DECISION = Death("sink.commit", "begin")
"""Of a life that decides an epoch for the others to recover."""


def deaths(*names: str) -> list[Death]:
    """At the begin and the end of each step, as often as there are sinks that take it."""
    return [
        Death(name, phase, nth)
        for name in names
        for nth in ((1, 2) if name in OF_EACH_SINK else (1,))
        for phase in PHASES
    ]


def chain(number: int, of: int) -> list[Death]:
    """One of so many chains that have all deaths between them: recoveries are spread among epochs."""
    first, starts, epochs, last = (
        deaths(*names)[number::of]
        for names in (FIRST, (*START, *REBUILD), (*BEFORE_DECISION, DECISION, *AFTER_DECISION), LAST)
    )
    for place, death in enumerate(starts):
        epochs.insert(1 + 2 * place, death)
    return [*first, FIRST_DECISION, *epochs, *last]


def live_through(folder: Path, server: S3Server, chains: Mapping[str, Sequence[Death]], files: int) -> None:
    """Each provider's chains, whose names begin with it. No step is taken that nobody is killed at."""
    require_jars("s3a")
    fleet = Fleet(folder, files, {name: Kind("remote", name.rpartition(" ")[0]) for name in chains})
    for name in chains:
        put_bucket(fleet.root(name), server)
    die_in_turn(fleet, chains)
    assert fleet.seen <= {*STEPS}, "a step that nobody is killed at: add it to the lists"


def live_through_on_hdfs(folder: Path, server: HdfsServer, steps: list[Death], pipelines: int, files: int) -> None:
    """The same with checkpoints, workdir and files on HDFS."""
    kinds = {f"on-hdfs-{number}": Kind("on-hdfs", PROVIDERS[number % 2]) for number in range(pipelines)}
    fleet = Fleet(folder, files, kinds)
    for name in kinds:
        fleet.root(name).mkdir()
        (fleet.root(name) / HDFS_NAMED).write_text(server.new_folder())
    die_in_turn(fleet, {name: [FIRST_DECISION, *steps[number::pipelines]] for number, name in enumerate(kinds)})


def die_in_turn(fleet: Fleet, chains: Mapping[str, Sequence[Death]]) -> None:
    fleet.die_at({name: [death.moment for death in chain] for name, chain in chains.items()})
    fleet.end()
    assert fleet.died_at == {name: [death.moment.event for death in chain] for name, chain in chains.items()}


SOME = {
    "hdfs 1": [FIRST_DECISION, Death("workdir.fill", "end")],
    "hdfs 2": [Death("manifest.create", "end"), Death("files.copy", "end")],
    "rocksdb-changelog 1": [Death("files.log", "end"), Death("workdir.publish", "begin")],
    "rocksdb-changelog 2": [Death("sink.commit", "end", 2), Death("object.create", "begin")],
}


def test_killed_on_s3(tmp_path: Path, s3_server: S3Server) -> None:
    live_through(tmp_path, s3_server, SOME, files=FILES)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_the_beginning_and_the_end_of_every_step_on_s3(tmp_path: Path, s3_server: S3Server) -> None:
    """With each provider, and in each sink."""
    chains = {f"{provider} {number}": chain(number, 4) for provider in PROVIDERS for number in range(4)}
    live_through(tmp_path, s3_server, chains, files=22)


@pytest.mark.soak
@pytest.mark.parametrize("provider", PROVIDERS)
def test_killed_while_a_table_is_written_on_s3(provider: str, tmp_path: Path, s3_server: S3Server) -> None:
    """Alone: only one pipeline of a process writes to a Delta table at a time."""
    writing = [Death("sink.write", phase, 2) for phase in PHASES]
    live_through(tmp_path, s3_server, {f"{provider} 1": [FIRST_DECISION, *writing]}, files=FILES)


SOME_ON_HDFS = [Death("manifest.create", "end"), Death("sink.publish", "end")]


def test_killed_with_everything_on_hdfs(tmp_path: Path, hdfs: HdfsServer) -> None:
    live_through_on_hdfs(tmp_path, hdfs, SOME_ON_HDFS, pipelines=2, files=FILES)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_the_beginning_and_the_end_of_every_step_on_hdfs(tmp_path: Path, hdfs: HdfsServer) -> None:
    steps = [Death(name, phase) for name in STEPS_ON_HDFS for phase in PHASES]
    live_through_on_hdfs(tmp_path, hdfs, steps, pipelines=4, files=10)
