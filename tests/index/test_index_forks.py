"""A process that has an index open forks: the child can do nothing with it, and does no harm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
from index_works import open_at, session, snapshot

from holdfast.base import forks
from holdfast.errors import HoldfastError, Invalid
from holdfast.index import Index, open_index
from holdfast.index import session as sessions
from holdfast.storage.kv.store import KeyValueStore
from index_places import PLACES

PERSISTENT = [name for name, place in PLACES.items() if place.abilities.persistent]


@pytest.fixture(params=PERSISTENT)
def url(request: pytest.FixtureRequest) -> str:
    return PLACES[request.param].fresh(request)


class OpenInOrder(list[forks.Inherited]):
    """In place of the set of what is open, whose order is anybody's guess: told in one order, or in the other."""

    def __init__(self, step: int) -> None:
        self._step = step

    add = list.append

    def discard(self, thing: forks.Inherited) -> None:
        self[:] = [other for other in list.__iter__(self) if other is not thing]

    def __iter__(self) -> Iterator[forks.Inherited]:
        return iter(self[:: self._step])


@pytest.fixture(params=[1, -1], ids=["oldest-first", "newest-first"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_open", OpenInOrder(request.param))


@pytest.fixture
def index(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(sessions, "HELD_CHANGES", 8)
    with open_at(url) as index:
        yield index


def forked(work: Callable[[], object]) -> int:
    """Run something in a forked child that ends within ten seconds, or is ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(10)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.usefixtures("order")
def test_child_can_do_nothing_and_does_no_harm(index: Index, url: str) -> None:
    session(1, 600)(index)
    scan = index.results.scan()
    first = next(scan)
    store = index._store
    assert isinstance(store, KeyValueStore)
    index.begin()
    for number in range(100):
        index.results.put(b"%03d" % number, b"changed")
    looked = open_index(url, read_only=True)
    looking = looked.results.scan()
    next(looking)

    def in_child() -> None:
        for call in (
            lambda: index.results.get(b"001"),
            lambda: index.results.put(b"001", b"by the child"),
            lambda: snapshot(index),
            lambda: looked.results.get(b"001"),
            index.commit,
            lambda: store.get("results", b"001"),
            lambda: store.begin().write({"results": {b"001": b"by the child"}}),
        ):
            with pytest.raises(Invalid, match="forked"):
                call()
        with pytest.raises(Invalid):
            list(scan)
        with contextlib.suppress(HoldfastError):  # SQLite's has nothing that a child could harm
            list(looking)
        index.rollback()
        index.close()
        looked.close()

    assert forked(in_child) == 0
    assert len([first, *scan]) == len([0, *looking]) == 600
    looked.close()
    index.results.put(b"last", b"by the parent")
    index.commit()
    assert index.results.get(b"001") == b"changed"
    assert index.results.get(b"last") == b"by the parent"
    index.close()
    with open_at(url) as again:
        found = dict(again.results.scan())
    assert (len(found), found[b"099"], found[b"last"]) == (601, b"changed", b"by the parent")


def test_child_of_a_process_with_other_threads_does_not_wait_for_them(index: Index) -> None:
    """A lock that another thread holds at the moment of the fork stays held in the child, where that thread is not."""
    session(1, 5)(index)
    is_over = threading.Event()

    def read_on() -> None:
        while not is_over.is_set():
            index.results.get(b"001")

    thread = threading.Thread(target=read_on)
    thread.start()
    try:
        assert [forked(index.close) for _ in range(20)] == [0] * 20
    finally:
        is_over.set()
        thread.join()
    session(2, 5)(index)
    assert snapshot(index)[1]["a"].sequence == 2


FORKING = """
import logging, os, sys
sys.path[:] = {path!r}
logging.disable()
from index_works import open_at, session
index = open_at({url!r})
session(1, 5)(index)
child = os.fork()
if child == 0:
    {in_child}
else:
    {in_parent}
"""


def run(url: str, in_child: str, in_parent: str) -> list[str]:
    program = FORKING.format(path=sys.path, url=url, in_child=in_child, in_parent=in_parent)
    return [sys.executable, "-c", program]


def test_child_that_ends_with_all_that_the_end_of_an_interpreter_does(url: str) -> None:
    command = run(url, "sys.exit(0)", "os.waitpid(child, 0); session(2, 5)(index); print('committed')")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("committed\n", "")
    with open_at(url) as index:
        assert snapshot(index)[1]["a"].sequence == 2


def test_index_is_free_when_its_process_is_gone_though_a_child_lives(url: str) -> None:
    command = run(url, "print(os.getpid(), flush=True); sys.stdin.read()", "os.waitpid(child, 0)")
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    os.kill(child, 0)  # is alive
    with open_at(url) as index:
        session(2, 5)(index)
    parent.stdin.close()
    parent.stdout.read()  # ends when the child does
    parent.stdout.close()
    with open_at(url) as index:
        assert snapshot(index)[1]["a"].sequence == 2
