"""Work for the crash harness to kill. Imports little: each fresh child pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from holdfast.base.steps import step
from holdfast.testing.faults.crash import Acknowledge


def three_steps(acknowledge: Acknowledge, root: str) -> None:
    Path(root).mkdir()
    for name in ("one", "two", "three"):
        with step(f"write.{name}"):
            Path(root, name).write_text(name)
        acknowledge(name)
    print("all three are written")


def nested(acknowledge: Acknowledge) -> None:
    with step("outer"), step("inner"):
        acknowledge("two\nlines")


def failed_step(acknowledge: Acknowledge) -> None:
    try:
        with step("will.fail"):
            raise OSError("disk full")
    except OSError:
        acknowledge("handled")


def raises(acknowledge: Acknowledge) -> None:
    acknowledge("so far")
    raise ValueError("the work is wrong")


def exits(acknowledge: Acknowledge, status: int | None) -> None:
    raise SystemExit(status)


def killed_by_somebody_else(acknowledge: Acknowledge) -> None:
    os.kill(os.getpid(), 9)


def hangs(acknowledge: Acknowledge) -> None:
    with step("before.the.hang"):
        threading.Event().wait()


def leaves_a_child(acknowledge: Acknowledge) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    acknowledge(str(child.pid))
    with step("after.starting.it"):
        pass


def leaves_a_child_in_a_group_of_its_own(acknowledge: Acknowledge) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
    acknowledge(str(child.pid))
    with step("after.starting.it"):
        pass


def repeats(acknowledge: Acknowledge) -> None:
    for name in ("a", "b", "a", "c", "a", "a"):
        with step(name):
            acknowledge(name)


def from_threads(acknowledge: Acknowledge) -> None:
    def loop() -> None:
        for _ in range(200):
            with step("in.a.thread"):
                acknowledge("once")

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tells_its_pids(acknowledge: Acknowledge) -> None:
    acknowledge(f"{os.getppid()} {os.getpid()}")
    with step("told"):
        pass


def lasting(acknowledge: Acknowledge, tell: str) -> None:
    Path(tell + ".new").write_text(f"{os.getppid()} {os.getpid()}")
    os.rename(tell + ".new", tell)
    threading.Event().wait()
