from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

from holdfast.base import forks


class Open:
    def __init__(self, fails: bool = False) -> None:
        self.forgotten = 0
        self._fails = fails

    def forget_in_child(self) -> None:
        self.forgotten += 1
        if self._fails:
            raise RuntimeError("no luck")


def in_child(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_forgets_what_is_open_and_its_parent_does_not() -> None:
    left_open, closed, never_opened = Open(), Open(), Open()
    forks.opened(left_open)
    forks.opened(closed)
    forks.closed(closed)
    forks.closed(never_opened)
    try:
        assert in_child(lambda: (left_open.forgotten, closed.forgotten) == (1, 0))
        assert left_open.forgotten == 0
    finally:
        forks.closed(left_open)


def test_one_that_cannot_forget_does_not_keep_others_from_it(capfd: pytest.CaptureFixture[str]) -> None:
    things = [Open(fails=True), Open(), Open(fails=True), Open()]
    for thing in things:
        forks.opened(thing)
    try:
        assert in_child(lambda: all(thing.forgotten == 1 for thing in things))
    finally:
        for thing in things:
            forks.closed(thing)


def test_nothing_is_kept_alive() -> None:
    forks.opened(Open())
    gc.collect()
    assert not any(isinstance(thing, Open) for thing in forks._open)


def test_functions_of_modules_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_functions", [])
    thing, seen = Open(), []
    forks.opened(thing)
    forks.in_child(lambda: seen.append(thing.forgotten))
    try:
        assert in_child(lambda: seen == [0] and thing.forgotten == 1)
        assert seen == []
    finally:
        forks.closed(thing)


def test_the_error_names_the_kind() -> None:
    assert forks.closed_or_forked("sqlite:///x").code == "index.closed"
    assert forks.closed_or_forked("sqlite:///x", "store").code == "store.closed"
    assert forks.closed_or_forked("sqlite:///x", "store").unchanged == "the store"
