"""A process dies of SIGKILL at every named step, and whoever opens the store afterwards finds it in order."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from proof_checks import check, check_tidy
from proof_works import WORKS, Address, Place, Work, manifest

from holdfast.checkpoints.lease import KEPT_GENERATIONS
from holdfast.storage.objects import hdfs_turns
from holdfast.testing.faults import crash
from holdfast.testing.faults.crash import CrashRing
from products import in_turn
from servers.hdfs import HdfsServer
from servers.s3 import S3Server

pytestmark = pytest.mark.crash

RUN = f"{Path(__file__).with_name('proof_works.py')}:run"


@pytest.fixture
def folder() -> Iterator[str]:
    """A shallow folder, in memory where there is one: each folder above the store is two more places to be killed at,
    and what a kill ends is a process, not a disk.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as found:
        yield found


@pytest.fixture(scope="module")
def ring() -> Iterator[CrashRing]:
    with CrashRing(RUN) as ring:
        yield ring


def contents(root: str) -> Iterator[tuple[str, bytes | None]]:
    """Every path below a folder with its bytes, in one order."""
    for path in sorted(Path(root).rglob("*")):
        yield str(path.relative_to(root)), None if path.is_dir() else path.read_bytes()


def after_the_kill(place: Place, work: Work, lines: list[str], variant: str, root: str | None) -> None:
    """Everything that must hold once a process has died, a second run included."""
    check(place, lines, work.keep)
    work.run(place, lines.append, variant)
    if work.keep:
        place.open().prune(work.keep)  # a save that found everything saved already had no cause to remove anything
    ids = check(place, lines, work.keep)
    assert tuple(ids) == work.final
    # A dead attempt's batch with other content stays until its epoch goes: no manifest says that it is nobody's.
    check_tidy(place, root, spare_batches_of=ids if variant == "second" else ())
    store = place.open()
    number = store.next_id()
    assert number > max(ids)
    store.save(manifest(number, "plain", variant))
    assert store.latest_pointer() == number
    assert sum("generation-" in info.key for info in store.objects.list("lease/")) <= KEPT_GENERATIONS + 1
    assert store.recover_latest_validated().chosen_id == number


@pytest.mark.parametrize(("name", "layout"), in_turn(WORKS, ["directory", "object"]))
def test_killed_at_every_step_on_local_disk(name: str, layout: str, folder: str, ring: CrashRing) -> None:
    work = WORKS[name]
    before = os.path.join(folder, "before")
    told: list[str] = []
    os.mkdir(before)
    work.prepare(Address(before, layout), told.append)

    def fresh(label: str, of: str = before) -> str:
        root = os.path.join(folder, label)
        shutil.copytree(of, root)
        return root

    root = fresh("killed")
    events = ring.record(work=name, url=root, layout=layout)
    assert len(events) > 4
    seen: set[Any] = set()
    for index, event in enumerate(events):
        shutil.rmtree(root)
        fresh("killed")
        run = ring.kill_at(index, work=name, url=root, layout=layout)
        assert (run.killed, run.event) == (True, event)
        found = (tuple(run.acknowledged), tuple(contents(root)))
        if found in seen:  # no step changed anything since: the same was checked with the kill before
            continue
        seen.add(found)
        for variant in ("first", "second") if work.may_differ else ("first",):
            copy = fresh("copy", root)
            after_the_kill(Address(copy, layout), work, told + run.acknowledged, variant, copy)
            shutil.rmtree(copy)


def test_a_run_that_is_not_killed_acknowledges_everything(folder: str, ring: CrashRing) -> None:
    """The harness is not blind: each work tells what it did, and its last event is not the end of its list."""
    for name, work in WORKS.items():
        root = os.path.join(folder, name)
        told: list[str] = []
        work.prepare(Address(root, "directory"), told.append)
        events = ring.record(work=name, url=os.path.join(folder, name + "-2"), layout="directory") if not told else []
        run = ring.kill_at(len(events) + 10_000, work=name, url=root, layout="directory")
        assert not run.killed
        assert run.acknowledged
        assert tuple(check(Address(root, "directory"), told + run.acknowledged, work.keep)) == work.final


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("name", ["stray-sidecar", "states-child", "batch", "update", "prune"])
def test_killed_at_every_request_on_s3(name: str, s3_server: S3Server) -> None:
    work = WORKS[name]

    def prepared() -> tuple[Address, list[str]]:
        place = Address(f"s3://{s3_server.new_bucket()}/pipeline", "object", s3_server.options)
        told: list[str] = []
        work.prepare(place, told.append)
        return place, told

    def arguments(place: Address) -> dict[str, object]:
        return {"work": name, "url": place.url, "layout": place.layout, "options": place.options}

    events = crash.record(RUN, **arguments(prepared()[0]))
    places = [index for index, event in enumerate(events) if event.name.startswith("object.")]
    assert len(places) > 1

    def kill(index: int) -> None:
        place, told = prepared()
        run = crash.kill_at(RUN, index, **arguments(place))
        assert run.event == events[index]
        variant = "first" if index % 2 else "second"
        after_the_kill(place, work, told + run.acknowledged, variant, None)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill, places))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "save",
        "update",
        *(pytest.param(name, marks=pytest.mark.soak) for name in WORKS if name not in ("save", "update")),
    ],
)
def test_killed_at_every_step_on_hdfs(name: str, hdfs: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between a contender and its rename, and with an object moved aside and not yet removed."""
    monkeypatch.setattr(hdfs_turns, "PATIENCE", 0.2)
    work = WORKS[name]

    def prepared() -> tuple[Address, list[str]]:
        place = Address(hdfs.new_folder(), "object", {"dfs.replication": "2"})
        told: list[str] = []
        work.prepare(place, told.append)
        return place, told

    def arguments(place: Address) -> dict[str, object]:
        return {"work": name, "url": place.url, "layout": place.layout, "options": place.options}

    events = crash.record(RUN, **arguments(prepared()[0]))
    places = [index for index, event in enumerate(events) if event.name.startswith("hdfs.")]
    assert len(places) > 3

    def kill(index: int) -> None:
        place, told = prepared()
        run = crash.kill_at(RUN, index, **arguments(place))
        assert run.event == events[index]
        after_the_kill(place, work, told + run.acknowledged, "first" if index % 2 else "second", None)
        assert place.open().objects.leftovers() == []

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill, places))
