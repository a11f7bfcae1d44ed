"""Servers that die of SIGKILL while sessions are committed, again and again: nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.index import Index, open_index
from servers.postgres import postgres_server
from servers.valkey import valkey_server

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SIZE = 50


class Server(Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...


@contextlib.contextmanager
def valkey_place() -> Iterator[tuple[Server, str]]:
    with valkey_server() as server:
        yield server, server.url("index")


@contextlib.contextmanager
def postgres_place() -> Iterator[tuple[Server, str]]:
    with postgres_server() as server:
        yield server, f"{server.new_database()}&index=index"


def put(index: Index, number: int) -> None:
    """A session that overwrites, adds and removes, and says so in its checkpoint."""
    with index.session():
        for key in range(SIZE):
            index.results.put(b"same-%03d" % key, b"%d" % number)
        index.results.put(b"own-%06d" % number, b"%d" % number)
        index.results.delete(b"own-%06d" % (number - 2))
        index.checkpoints.stage_checkpoint("source", number, b"at %d" % number)


def expected(number: int) -> dict[bytes, bytes]:
    found = {b"same-%03d" % key: b"%d" % number for key in range(SIZE)}
    return found | {b"own-%06d" % own: b"%d" % own for own in (number - 1, number) if own > 0}


def state(index: Index) -> int:
    """The last session that is in force; results and checkpoint must agree on it, exactly."""
    results = dict(index.results.scan())
    checkpoint = index.checkpoints.read_checkpoint("source")
    if checkpoint is None:
        assert results == {}
        return 0
    assert checkpoint.source_position == b"at %d" % checkpoint.sequence
    assert results == expected(checkpoint.sequence)
    return checkpoint.sequence


class Worker:
    """Commits sessions with rising numbers until it is told to stop, and checks what every failure claims."""

    def __init__(self, url: str) -> None:
        self.acknowledged = 0
        self.failures: dict[str, int] = {}
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._index = open_index(url)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._index.close()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._next()
        except BaseException as error:
            self.error = error

    def _next(self) -> None:
        number = self.acknowledged + 1
        try:
            put(self._index, number)
        except (Unavailable, OutcomeUnknown) as error:
            self.failures[error.code] = self.failures.get(error.code, 0) + 1
            found = self._read_back()
            if isinstance(error, OutcomeUnknown):
                assert found in (self.acknowledged, number)
                self.acknowledged = found
            else:
                assert found == self.acknowledged, "what was reported as not applied is there, or more is gone"
        else:
            self.acknowledged = number

    def _read_back(self) -> int:
        deadline = time.monotonic() + 60
        while True:
            try:
                return state(self._index)
            except HoldfastError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


@pytest.mark.parametrize("kills", [5, pytest.param(60, marks=pytest.mark.soak)])
@pytest.mark.parametrize("place", [valkey_place, postgres_place], ids=["valkey", "postgres"])
def test_killed_in_the_middle_of_commits(
    place: Callable[[], contextlib.AbstractContextManager[tuple[Server, str]]], kills: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with place() as (server, url):
        worker = Worker(url)
        try:
            for _ in range(kills):
                reached = worker.acknowledged + 3
                deadline = time.monotonic() + 60
                while worker.acknowledged < reached and worker.error is None:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                time.sleep(chance.uniform(0, 0.02))  # anywhere in a commit
                server.kill()
                server.start()
        finally:
            worker.stop()
        print(worker.acknowledged, worker.failures)
        assert worker.acknowledged > kills
        assert worker.failures
        with open_index(url) as index:
            assert state(index) == worker.acknowledged
            put(index, worker.acknowledged + 1)
            assert state(index) == worker.acknowledged + 1
