"""A process dies of SIGKILL, and whoever opens the index afterwards finds results and checkpoints that agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from index_works import MILESTONES, open_at, session, small_chunks, snapshot

from holdfast.index import configuration, open_index
from holdfast.index import session as sessions
from holdfast.storage.kv import postgres, sqlite
from holdfast.testing.faults.crash import CrashRing, StepEvent
from index_places import PLACES

pytestmark = pytest.mark.crash

WORKS = Path(__file__).with_name("index_works.py")
PERSISTENT = [name for name, place in PLACES.items() if place.abilities.persistent]


@pytest.fixture(scope="module")
def ring() -> Iterator[CrashRing]:
    with CrashRing(f"{WORKS}:all_milestones") as ring:
        yield ring


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELD_CHANGES", sessions.HELD_CHANGES)  # all back at the end
    monkeypatch.setattr(configuration, "RESET_CHUNK", configuration.RESET_CHUNK)
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "SPILL_BYTES", module.SPILL_BYTES)
    small_chunks()


def every(events: list[StepEvent]) -> Iterable[int]:
    return range(len(events))


def different(events: list[StepEvent]) -> Iterable[int]:
    """Places of the events, without those that differ from the next one in nothing durable: where steps lie in another,
    the inner one's beginning and the outer one's end are enough."""
    return [at for at, event in enumerate(events) if at + 1 == len(events) or event.phase != events[at + 1].phase]


@pytest.mark.parametrize("which", [different, pytest.param(every, marks=pytest.mark.soak)], ids=["different", "all"])
@pytest.mark.parametrize("name", PERSISTENT)
def test_killed_at_every_step(
    name: str, which: Callable[[list[StepEvent]], Iterable[int]], request: pytest.FixtureRequest, ring: CrashRing
) -> None:
    place = PLACES[name]
    with open_at(place.fresh(request)) as index:
        reference = [snapshot(index)]
        for milestone in MILESTONES:
            milestone(index)
            reference.append(snapshot(index))
    events = ring.record(url=place.fresh(request))
    assert {event.name for event in events} >= {
        "index.create",
        "index.configure",
        "index.write",
        "index.commit",
        "index.clear",
        "index.gap",
        "reset.begin",
        "reset.clear",
        "reset.finish",
    }
    outcomes = set()
    for at in which(events):
        url = place.fresh(request)
        run = ring.kill_at(at, url=url)
        assert (run.killed, run.event) == (True, events[at])
        acknowledged = len(run.acknowledged)
        with open_at(url) as index:
            found = snapshot(index)
            assert found in reference[acknowledged : acknowledged + 2], events[at]
            reached = acknowledged if found == reference[acknowledged] else acknowledged + 1
            outcomes.add(reached - acknowledged)
            for milestone in MILESTONES[reached:]:
                milestone(index)
            assert snapshot(index) == reference[-1]
        with open_at(url) as index:
            assert snapshot(index) == reference[-1]
    assert outcomes == {0, 1}  # killed before and after something counted


def test_killed_while_finishing_what_another_was_killed_at(tmp_path: Path, ring: CrashRing) -> None:
    """The opening that finishes a reset is killed at each of its steps, and the next one finishes it all the same."""
    before = tmp_path / "before"
    events = ring.record(url=f"sqlite:///{tmp_path}/record/index.db")
    at = next(number for number, event in enumerate(events) if event.name == "reset.clear") + 1
    ring.kill_at(at, url=f"sqlite:///{before}/index.db")
    with CrashRing(f"{WORKS}:only_open") as opening:
        copy = tmp_path / "copy"
        shutil.copytree(before, copy)
        events = opening.record(url=f"sqlite:///{copy}/index.db")
        assert events[-1].name == "reset.finish"
        assert len(events) >= 4
        for number in range(len(events)):
            shutil.rmtree(copy)
            shutil.copytree(before, copy)
            assert opening.kill_at(number, url=f"sqlite:///{copy}/index.db").killed
            with open_index(f"sqlite:///{copy}/index.db") as index:
                assert snapshot(index) == ({}, {}, 3, [])


@pytest.mark.parametrize("name", PERSISTENT)
def test_killed_at_any_moment(name: str, request: pytest.FixtureRequest) -> None:
    """Not at a step: wherever the process happens to be, in the middle of a commit too."""
    url = PLACES[name].fresh(request)
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; import index_works\n"
        f"index_works.endless_sessions(lambda text: print(text, flush=True), {url!r})"
    )
    last = 0
    for length in (1, 3, 8):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(length)]
        process.kill()
        told += [int(line) for line in process.stdout.read().split()]
        process.wait()
        process.stdout.close()
        assert told[0] == last + 1
        with open_at(url) as index:
            found = snapshot(index)
        last = found[1]["a"].sequence
        assert last in (told[-1], told[-1] + 1)
        with open_index("memory://") as expected:
            for number in range(1, last + 1):
                session(number, 200)(expected)
            assert found == snapshot(expected)
