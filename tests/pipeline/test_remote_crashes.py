"""Pipelines with checkpoints and workdir on S3, or with all they have on HDFS, are killed at their steps there.

As in test_crash_matrix.py: each pipeline lives through a chain of deaths, and ends as if nobody had ever died.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chains import DECIDED, STAGED, Fleet, Kind
from orders import BUCKET_NAMED, HDFS_NAMED

from holdfast.base.steps import Phase
from holdfast.testing.faults.crash import Moment, StepEvent
from maven import require_jars
from servers.hdfs import HdfsServer
from servers.s3 import S3Server

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]

FILES = 4
START = ("lease.claim", "workdir.enter", "sink.recover")
REBUILD = ("workdir.fill", "workdir.publish")
BEFORE_DECISION = ("epoch.capture", "capture.pack", "batch.create", "object.create", "manifest.create")
AFTER_DECISION = ("pointer.advance", "object.update", "sink.commit", "epoch.settle", "manifest.update")
ON_HDFS = ("sink.publish", "sink.publish-sync", "sink.discard", "hdfs.rename")
STEPS = (*START, *REBUILD, *BEFORE_DECISION, *AFTER_DECISION)
PROVIDERS = ("hdfs", "rocksdb-changelog")


def moment(name: str, phase: Phase) -> Moment:
    """Where to die: in an epoch after one that was decided, or in the start that recovers from it."""
    event = StepEvent(name, phase)
    since = {**dict.fromkeys(BEFORE_DECISION, STAGED), **dict.fromkeys((*AFTER_DECISION, *ON_HDFS), DECIDED)}.get(name)
    return Moment(event, since=since if event != since else None)


def put_bucket(fleet: Fleet, name: str, server: S3Server) -> None:
    fleet.root(name).mkdir()
    at = {"endpoint": server.endpoint, "bucket": server.new_bucket()}
    (fleet.root(name) / BUCKET_NAMED).write_text(json.dumps(at))


def live_through(folder: Path, server: S3Server, steps: list[tuple[str, Phase]], pipelines: int, files: int) -> Fleet:
    """Spread the deaths over some pipelines with one provider or the other; every life begins by recovering."""
    require_jars("s3a")
    kinds = {f"remote-{number}": Kind("remote", PROVIDERS[number % 2]) for number in range(pipelines)}
    fleet = Fleet(folder, files, kinds)
    for name in kinds:
        put_bucket(fleet, name, server)
    return die_in_turn(fleet, list(kinds), steps)


def live_through_on_hdfs(
    folder: Path, server: HdfsServer, steps: list[tuple[str, Phase]], pipelines: int, files: int
) -> Fleet:
    """The same with checkpoints, workdir and files on HDFS."""
    kinds = {f"on-hdfs-{number}": Kind("on-hdfs", PROVIDERS[number % 2]) for number in range(pipelines)}
    fleet = Fleet(folder, files, kinds)
    for name in kinds:
        fleet.root(name).mkdir()
        (fleet.root(name) / HDFS_NAMED).write_text(server.new_folder())
    return die_in_turn(fleet, list(kinds), steps)


def die_in_turn(fleet: Fleet, kinds: list[str], steps: list[tuple[str, Phase]]) -> Fleet:
    pipelines = len(kinds)
    first = Moment(StepEvent("sink.commit", "begin"))
    """A first life that decides an epoch for the others to recover."""
    chains = {name: [first, *(moment(*step) for step in steps[number::pipelines])] for number, name in enumerate(kinds)}
    fleet.die_at(chains)
    fleet.end()
    assert fleet.died_at == {name: [dead.event for dead in chain] for name, chain in chains.items()}
    return fleet


SOME: list[tuple[str, Phase]] = [
    ("workdir.enter", "end"),
    ("workdir.fill", "end"),
    ("workdir.publish", "begin"),
    ("capture.pack", "end"),
    ("manifest.create", "end"),
    ("sink.commit", "end"),
    ("epoch.settle", "begin"),
    ("object.create", "begin"),
]


def test_killed_on_s3(tmp_path: Path, s3_server: S3Server) -> None:
    live_through(tmp_path, s3_server, SOME, pipelines=4, files=FILES)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_the_beginning_and_the_end_of_every_step_on_s3(tmp_path: Path, s3_server: S3Server) -> None:
    steps: list[tuple[str, Phase]] = [(name, phase) for name in STEPS for phase in ("begin", "end")]
    live_through(tmp_path, s3_server, steps, pipelines=4, files=10)


SOME_ON_HDFS: list[tuple[str, Phase]] = [
    ("manifest.create", "end"),
    ("sink.publish", "end"),
]


def test_killed_with_everything_on_hdfs(tmp_path: Path, hdfs: HdfsServer) -> None:
    live_through_on_hdfs(tmp_path, hdfs, SOME_ON_HDFS, pipelines=2, files=FILES)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_the_beginning_and_the_end_of_every_step_on_hdfs(tmp_path: Path, hdfs: HdfsServer) -> None:
    steps: list[tuple[str, Phase]] = [(name, phase) for name in (*STEPS, *ON_HDFS) for phase in ("begin", "end")]
    live_through_on_hdfs(tmp_path, hdfs, steps, pipelines=4, files=10)
