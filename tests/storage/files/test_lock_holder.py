"""A lock that a stopped process holds: the error names the process and says what to do about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import Conflict, Unavailable
from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.files.lock import FileLock
from holdfast.storage.files.lock_holder import LockHolder, holder_of

DIRECTORY = "from holdfast.storage.files.disk import PosixDisk; held = PosixDisk().locked({path!r}); held.__enter__()"
FILE = "from holdfast.storage.files.lock import FileLock; held = FileLock({path!r}, {path!r})"


@contextmanager
def stopped(take: str, path: Path, *arguments: str) -> Iterator[int]:
    """The id of a process that took a lock and was stopped while it held it."""
    program = take.format(path=str(path)) + "; import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    process = subprocess.Popen([sys.executable, "-c", program, *arguments])
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_stopped_holder_of_a_directory_is_named(tmp_path: Path) -> None:
    with stopped(DIRECTORY, tmp_path) as pid:
        with pytest.raises(Unavailable) as caught, PosixDisk(lock_timeout=0.05).locked(str(tmp_path)):
            raise AssertionError("the lock is held")
        error = caught.value
        assert error.code == "disk.locked"
        assert error.message.startswith(f"Process {pid} ({sys.executable} -c ")
        assert "it is stopped" in error.message
        assert f"kill -CONT {pid}" in (error.next_step or "")
        assert f"kill -9 {pid}" in (error.next_step or "")
        os.kill(pid, signal.SIGKILL)
        with PosixDisk(lock_timeout=30).locked(str(tmp_path)):
            pass  # what the message promises: killing the holder frees the lock


def test_a_stopped_holder_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "index.lock"
    with stopped(FILE, path) as pid:
        with pytest.raises(Conflict, match=f"in use by process {pid} .*, which is stopped") as caught:
            FileLock(str(path), "sqlite:///index")
        assert caught.value.code == "index.in-use"
        assert f"kill -CONT {pid}" in (caught.value.next_step or "")


def test_secrets_on_the_command_line_are_not_shown(tmp_path: Path) -> None:
    secrets = ["postgresql://me:hunter2@host/db", "--option", "secret_access_key=hunter2"]
    with stopped("import fcntl; f = open({path!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX)", tmp_path / "f", *secrets):
        descriptor = os.open(tmp_path / "f", os.O_RDONLY)
        try:
            holder = holder_of(descriptor)
        finally:
            os.close(descriptor)
    assert holder is not None
    assert holder.is_stopped
    assert "hunter2" not in str(holder)
    assert len(holder.command) <= 120


def test_a_lock_that_nobody_holds_has_no_holder(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert holder_of(descriptor) is None
    finally:
        os.close(descriptor)


def test_a_holder_that_runs_may_be_waited_for() -> None:
    assert LockHolder(7, "driver", is_stopped=False).next_step.startswith("wait for it, or end it with: kill -9 7")
