"""Descriptors that are held over a removal are closed again, in every process."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.files.reaper import MOST_WAITING

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


def held_below(folder: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


def churn(folder: Path, count: int) -> None:
    disk = PosixDisk()
    for number in range(count):
        disk.make_directory(str(folder / f"d{number}"))
        disk.write_file(str(folder / f"d{number}/file"), [b"x" * 5000])
        disk.write_file(str(folder / f"d{number}/new"), [b"y" * 5000])
        disk.rename(str(folder / f"d{number}/new"), str(folder / f"d{number}/file"))
        disk.remove_file(str(folder / f"d{number}/file"))
        disk.remove_directory(str(folder / f"d{number}"))


@needs_proc
def test_nothing_stays_open(tmp_path: Path) -> None:
    churn(tmp_path, 2 * MOST_WAITING)
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: held_below(tmp_path) == [])


@needs_proc
def test_a_forked_child_lets_go_as_well(tmp_path: Path) -> None:
    churn(tmp_path, 1)
    wait_for(lambda: held_below(tmp_path) == [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: threads and forks; that is the point
        child = os.fork()
    if child == 0:
        try:
            churn(tmp_path, 3)
            wait_for(lambda: held_below(tmp_path) == [])
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_not_there_is_reported_as_always(tmp_path: Path) -> None:
    disk = PosixDisk()
    with pytest.raises(FileNotFoundError):
        disk.remove_file(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        disk.remove_directory(str(tmp_path / "none"))
