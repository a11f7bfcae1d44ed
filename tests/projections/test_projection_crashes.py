"""A process dies of SIGKILL, and whoever opens the store afterwards finds each event in the read models once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from projection_places import PLACES
from projection_works import MILESTONES, check, open_at

from holdfast.projections import rebuild
from holdfast.testing.faults.crash import CrashRing

pytestmark = pytest.mark.crash

WORKS = Path(__file__).with_name("projection_works.py")
STEPS = {
    "store.create",
    "events.append",
    "projection.commit",
    "projection.reset",
    "projection.rewind",
    "rebuild.start",
    "rebuild.switch",
    "rebuild.sweep",
    "rebuild.swept",
    "cursors.save",
    "cursors.advance",
    "lease.take",
    "lease.release",
}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "CHUNK", rebuild.CHUNK)  # back at the end


@pytest.fixture
def folder() -> Iterator[str]:
    """In memory where there is a file system for that: a kill ends the process, not the machine."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield folder


@pytest.fixture(scope="module")
def ring() -> Iterator[CrashRing]:
    with CrashRing(f"{WORKS}:all_milestones") as ring:
        yield ring


def test_killed_at_every_step_on_sqlite(folder: str, ring: CrashRing) -> None:
    """At the beginning and the end of every commit, between which nothing changes, and once at each other step."""
    events = ring.record(url=f"sqlite:///{folder}/recorded/p.db")
    assert {event.name for event in events} >= STEPS | {"sqlite.create", "sqlite.commit", "rebuild.drop"}
    first = {event: at for at, event in reversed(list(enumerate(events)))}
    for at, event in enumerate(events):
        if first[event] != at and event.name != "sqlite.commit":
            continue
        url = f"sqlite:///{folder}/{at}/p.db"
        run = ring.kill_at(at, url=url)
        assert (run.killed, run.event) == (True, event)
        with open_at(url, later=60) as store:
            check(store)
            for milestone in MILESTONES[len(run.acknowledged) :]:
                milestone(store)
            check(store)
            assert store.lag("turnover").events == 0
            assert store.load_projection_checkpoint("bare").cursors == {"a": 5, "b": 1}
            assert list(store.kv.scan("shadows", b"", None)) == []


COMMITS = {
    "postgres": {"postgres.open", "postgres.write", "postgres.commit", "rebuild.drop"},
    "rocksdb": {"rocksdb.open", "rocksdb.commit"},
    "redis": {"redis.open", "redis.queue", "redis.commit"},
    "slatedb": {"slatedb.open", "slatedb.write", "slatedb.durable"},
}
"""Steps of a store's own, at which its commit can be cut off."""


@pytest.mark.parametrize("kind", COMMITS)
def test_killed_at_each_kind_of_step(kind: str, ring: CrashRing, request: pytest.FixtureRequest) -> None:
    """At the first time of each."""
    place = PLACES[kind]
    open_at(place.fresh(request)).close()  # a database has its tables made once, for all stores
    events = ring.record(url=place.fresh(request))
    assert {event.name for event in events} >= STEPS | COMMITS[kind]
    first = {event: at for at, event in reversed(list(enumerate(events)))}
    for at in sorted(first.values()):
        url = place.fresh(request)
        run = ring.kill_at(at, url=url)
        assert (run.killed, run.event) == (True, events[at])
        with open_at(url, later=60) as store:
            check(store)
            for milestone in MILESTONES[len(run.acknowledged) :]:
                milestone(store)
            check(store)
            assert store.lag("turnover").events == 0
            assert list(store.kv.scan("shadows", b"", None)) == []


@pytest.mark.parametrize("kind", ["sqlite", *COMMITS])
def test_killed_at_any_moment(kind: str, request: pytest.FixtureRequest) -> None:
    """Not at a step: wherever the process happens to be, in the middle of a commit too."""
    url = PLACES[kind].fresh(request)
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; import projection_works\n"
        f"projection_works.endless(lambda text: print(text, flush=True), {url!r})"
    )
    last = 0
    for length in (1, 3, 18, 30, 50) if kind == "sqlite" else (2, 25):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(length)]
        process.kill()
        told += [int(line) for line in process.stdout.read().split()]
        process.wait()
        process.stdout.close()
        assert told[0] == last + 1
        with open_at(url) as store:
            last = check(store)
        assert last in (told[-1], told[-1] + 1)
