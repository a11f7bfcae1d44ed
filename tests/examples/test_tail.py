"""The example of a source that a program reads itself: killed again and again, it counts every line once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast.errors import NotFound, Unavailable
from holdfast.index import SourceCheckpoint, open_index

EXAMPLE = Path(__file__).parents[2] / "examples/tail.py"
PAGES = ["/", "/shop", "/about", "/ü"]


class Log:
    """A log that grows, and what it should be counted as."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.expected: Counter[str] = Counter()
        self.path.touch()

    def write(self, number: int) -> None:
        pages = [PAGES[line * line % len(PAGES)] for line in range(number)]
        with self.path.open("ab") as log:
            log.writelines(f"2026-01-05T00:00:00Z {page}\n".encode() for page in pages)
        self.expected.update(pages)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "access.log")


def command(log: Log, *words: str) -> list[str]:
    return [sys.executable, str(EXAMPLE), str(log.path), "--index", str(log.path.with_name("visits.db")), *words]


def run(log: Log, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(log, *words), capture_output=True, text=True, check=False, timeout=60)


def checkpoint(log: Log) -> SourceCheckpoint | None:
    try:
        with open_index(log.path.with_name("visits.db"), read_only=True) as index:
            return index.checkpoints.read_checkpoint("log")
    except (NotFound, Unavailable):
        return None


def counted(log: Log) -> dict[str, int]:
    done = run(log)
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.split() for line in done.stdout.splitlines()]
    return {page: int(visits) for visits, page in words}


def test_killed_again_and_again_it_counts_every_line_once(log: Log) -> None:
    for life in range(5):
        log.write(5000)
        before = checkpoint(log)
        with subprocess.Popen(command(log, "--follow")) as process:
            try:
                deadline = time.monotonic() + 60
                while checkpoint(log) == before:  # in the middle of its work: 5,000 lines are five commits
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                log.write(10 * life)
            finally:
                process.kill()
    log.write(7)
    assert counted(log) == log.expected
    found = checkpoint(log)
    assert found == SourceCheckpoint(log.expected.total(), b"%d" % log.path.stat().st_size)
    assert counted(log) == log.expected
    assert checkpoint(log) == found


def test_line_that_is_still_being_written(log: Log) -> None:
    log.write(3)
    with log.path.open("ab") as file:
        file.write(b"2026-01-05T00:00:00Z /sh")
    assert counted(log) == log.expected
    with log.path.open("ab") as file:
        file.write(b"op\n")
    log.expected["/shop"] += 1
    assert counted(log) == log.expected


def test_log_that_was_replaced(log: Log) -> None:
    log.write(3000)
    assert counted(log) == log.expected
    log.path.unlink()
    anew = Log(log.path)
    anew.write(10)
    done = run(anew)
    assert done.returncode != 0
    assert "source.position-unavailable" in done.stderr or "cannot resume from its checkpoint" in done.stderr
    done = run(anew, "--on-lost", "reset")
    assert done.returncode == 0
    assert counted(anew) == anew.expected
