"""The crash harness kills where it says, tells what was acknowledged, and leaves no process behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from holdfast.testing.faults.crash import ChildFailed, CrashRing, KilledRun, Moment, StepEvent, kill_at, record

WORKS = str(Path(__file__).with_name("crash_works.py"))
THREE = [StepEvent(f"write.{name}", phase) for name in ("one", "two", "three") for phase in ("begin", "end")]


class Harness(Protocol):
    def record(self, **arguments: Any) -> list[StepEvent]: ...

    def kill_at(self, at: int | Moment, **arguments: Any) -> KilledRun: ...


class Fresh:
    def __init__(self, work: str, timeout: float) -> None:
        self.work = work
        self.timeout = timeout

    def record(self, **arguments: Any) -> list[StepEvent]:
        return record(self.work, timeout=self.timeout, **arguments)

    def kill_at(self, at: int | Moment, **arguments: Any) -> KilledRun:
        return kill_at(self.work, at, timeout=self.timeout, **arguments)


Make = Callable[..., Harness]


@pytest.fixture(params=["fresh", "ring"])
def harness(request: pytest.FixtureRequest) -> Iterator[Make]:
    rings: list[CrashRing] = []

    def make(function: str, timeout: float = 30.0) -> Harness:
        work = f"{WORKS}:{function}"
        if request.param == "fresh":
            return Fresh(work, timeout)
        rings.append(CrashRing(work, timeout=timeout).__enter__())
        return rings[-1]

    yield make
    for ring in rings:
        ring.__exit__(None, None, None)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def test_a_recording_holds_every_event(harness: Make, tmp_path: Path) -> None:
    assert harness("three_steps").record(root=str(tmp_path / "r")) == THREE


def test_it_dies_at_each_event_with_what_it_had_done_and_acknowledged(harness: Make, tmp_path: Path) -> None:
    three_steps = harness("three_steps")
    for index, event in enumerate(THREE):
        root = tmp_path / str(index)
        run = three_steps.kill_at(index, root=str(root))
        assert run.killed
        assert run.event == event
        assert run.events == THREE[: index + 1]
        assert run.acknowledged == ["one", "two", "three"][: index // 2]
        assert sorted(os.listdir(root)) == sorted(["one", "two", "three"][: (index + 1) // 2])


def test_an_event_that_never_comes_kills_nothing(harness: Make, tmp_path: Path) -> None:
    run = harness("three_steps").kill_at(len(THREE), root=str(tmp_path / "r"))
    assert run == KilledRun(None, False, ["one", "two", "three"], THREE)


def test_nested_and_failed_steps_are_events_too(harness: Make) -> None:
    assert [event.name for event in harness("nested").record()] == ["outer", "inner", "inner", "outer"]
    assert harness("nested").kill_at(2).acknowledged == ["two\nlines"]
    assert harness("failed_step").record() == [StepEvent("will.fail", "begin"), StepEvent("will.fail", "failed")]


def test_work_that_raises_is_reported_with_its_traceback(harness: Make) -> None:
    raises = harness("raises")
    for run in (raises.record, lambda: raises.kill_at(0)):
        with pytest.raises(ChildFailed, match="the work is wrong"):
            run()


def test_an_exit_counts_by_its_status(harness: Make) -> None:
    exits = harness("exits")
    assert exits.record(status=0) == []
    assert exits.record(status=None) == []
    with pytest.raises(ChildFailed, match=r"failed \(3\)"):
        exits.record(status=3)


def test_a_kill_by_somebody_else_is_no_crash_of_ours(harness: Make) -> None:
    with pytest.raises(ChildFailed, match="SIGKILL, not by us"):
        harness("killed_by_somebody_else").kill_at(0)


def test_work_that_hangs_is_ended_and_says_where(harness: Make) -> None:
    hangs = harness("hangs", timeout=1.0)
    with pytest.raises(ChildFailed, match=r"(?s)did not end within 1 seconds.*before.the.hang.*in hangs"):
        hangs.record()


def test_what_the_work_started_dies_with_it(harness: Make) -> None:
    run = harness("leaves_a_child").kill_at(0)
    assert run.killed
    [pid] = run.acknowledged
    wait_until(lambda: not is_running(int(pid)))


def test_a_group_of_its_own_does_not_save_a_child() -> None:
    """It is gone when the run is reported, not some time later."""
    run = kill_at(f"{WORKS}:leaves_a_child_in_a_group_of_its_own", 0)
    assert run.killed
    [pid] = run.acknowledged
    assert not is_running(int(pid))


@pytest.mark.parametrize(
    ("moment", "done"),
    [
        (Moment(StepEvent("a", "begin")), ""),
        (Moment(StepEvent("a", "end")), "a"),
        (Moment(StepEvent("a", "begin"), nth=3), "abac"),
        (Moment(StepEvent("a", "begin"), since=StepEvent("b", "end")), "ab"),
        (Moment(StepEvent("a", "end"), nth=2, since=StepEvent("b", "begin")), "abaca"),
        (Moment(StepEvent("c", "end"), since=StepEvent("a", "begin")), "abac"),
    ],
)
def test_a_moment_names_the_place(harness: Make, moment: Moment, done: str) -> None:
    run = harness("repeats").kill_at(moment)
    assert (run.killed, run.event) == (True, moment.event)
    assert "".join(run.acknowledged) == done


@pytest.mark.parametrize(
    "moment", [Moment(StepEvent("a", "end"), nth=5), Moment(StepEvent("b", "end"), since=StepEvent("c", "end"))]
)
def test_a_moment_that_never_comes_kills_nothing(harness: Make, moment: Moment) -> None:
    run = harness("repeats").kill_at(moment)
    assert (run.killed, run.event) == (False, None)
    assert "".join(run.acknowledged) == "abacaa"


def test_events_of_several_threads_are_counted_one_by_one(harness: Make) -> None:
    from_threads = harness("from_threads")
    assert len(from_threads.record()) == 1600
    run = from_threads.kill_at(801)
    assert run.killed
    assert len(run.events) == 802


def test_an_importable_module_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_works.py").write_text("def work(acknowledge, text):\n    acknowledge(text)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert kill_at("some_works:work", 0, text="hello").acknowledged == ["hello"]
    with CrashRing("some_works:work") as ring:
        assert ring.kill_at(0, text="hello").acknowledged == ["hello"]


def test_a_ring_goes_on_after_work_that_failed() -> None:
    with CrashRing(f"{WORKS}:exits") as ring:
        with pytest.raises(ChildFailed):
            ring.record(status=1)
        with pytest.raises(ChildFailed, match="unexpected keyword argument"):
            ring.record(nonsense=1)
        assert ring.record(status=0) == []


def test_a_process_with_more_than_a_thousand_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with CrashRing(f"{WORKS}:exits") as ring:
            assert ring.record(status=0) == []
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_ring_forks_each_run_and_ends_with_its_block() -> None:
    with CrashRing(f"{WORKS}:tells_its_pids") as ring:
        runs = [ring.kill_at(0).acknowledged[0].split() for _ in range(3)]
    assert len({parent for parent, _ in runs}) == 1
    assert len({child for _, child in runs}) == 3
    assert not any(is_running(int(pid)) for run in runs for pid in run)


def test_a_ring_refuses_work_that_starts_threads_on_import(tmp_path: Path) -> None:
    works = tmp_path / "threaded.py"
    works.write_text(
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def work(acknowledge): pass\n"
    )
    with pytest.raises(ChildFailed, match="started threads"), CrashRing(f"{works}:work"):
        pass


def test_what_the_work_prints_does_not_disturb(tmp_path: Path) -> None:
    works = tmp_path / "chatty.py"
    works.write_text("print('imported')\ndef work(acknowledge):\n    print('called')\n    acknowledge(input())\n")
    with CrashRing(f"{works}:work") as ring, pytest.raises(ChildFailed, match=r"(?s)called.*EOFError"):
        ring.record()


def test_a_ring_says_why_its_work_cannot_be_imported() -> None:
    with pytest.raises(ChildFailed, match="no_such_module"), CrashRing("no_such_module:work"):
        pass


def test_a_ring_whose_process_is_gone_says_so() -> None:
    with CrashRing(f"{WORKS}:tells_its_pids") as ring:
        zygote, _ = ring.kill_at(0).acknowledged[0].split()
        os.kill(int(zygote), signal.SIGKILL)
        with pytest.raises(ChildFailed, match="is gone"):
            ring.record()


def test_nothing_outlives_the_process_that_owns_the_ring(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import sys, json
sys.path[:] = json.loads(sys.argv[1])
from holdfast.testing.faults.crash import CrashRing
with CrashRing({WORKS + ":lasting"!r}) as ring:
    ring.record(tell={str(pids)!r})
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # what is killed cannot clean up
    owner = subprocess.Popen([sys.executable, "-c", code, json.dumps(sys.path)], env=environment)
    try:
        wait_until(pids.exists)
    finally:
        owner.kill()
        owner.wait()
    started = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(is_running(pid) for pid in started))
