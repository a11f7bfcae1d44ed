"""^C at any step of a session: results and checkpoints agree, reads are right, and the next session goes through."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest
from index_works import open_at, session, small_chunks, snapshot

from holdfast.base.steps import Phase, observe
from holdfast.errors import Invalid
from holdfast.index import Index, configuration
from holdfast.index import session as sessions
from holdfast.storage.kv import memory, postgres, sqlite, transaction
from index_places import PLACES

SIZE = 20


def run(index: Index, number: int, *, interrupted_at: int | None = None) -> list[str]:
    """The events of a session, which ends at one of them."""
    events: list[str] = []

    def observer(name: str, phase: Phase, _: float) -> None:
        events.append(f"{name} {phase}")
        if len(events) - 1 == interrupted_at:
            raise KeyboardInterrupt

    stop = observe(observer)
    try:
        session(number, SIZE)(index)
    finally:
        stop()
    return events


CHECKS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")}
ENTERED = dis.opmap["RESUME"]
"""After these, and when a function is entered, Python looks for signals; nowhere else."""


def traced(work: Callable[[], object], *, interrupted_at: int) -> bool:
    """Work that a signal interrupts where Python sees it in a session for the n-th time; False if it never is."""
    left = interrupted_at
    files = {sessions.__file__, memory.__file__, transaction.__file__}
    last: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        at = frame.f_code.co_code[frame.f_lasti]
        if (event == "call" and at == ENTERED) or (event == "opcode" and last.get(frame) in CHECKS):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        last[frame] = at
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_interrupted_wherever_a_signal_can(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or not at all, no session is left, and the next one is not taken for part of one that is."""
    monkeypatch.setattr(sessions, "HELD_CHANGES", 8)
    outcomes = []
    with open_at(PLACES[name].fresh(request)) as index, open_at("memory://") as expected:
        number, at = 1, 0
        run(expected, 1)
        run(index, 1)
        while traced(partial(session(number + 1, SIZE), index), interrupted_at=at):
            assert not index.has_session, at
            reached = snapshot(index)[1]["a"].sequence
            outcomes.append(reached - number)
            if reached > number:
                run(expected, reached)
            assert snapshot(index) == snapshot(expected), at
            number = reached + 1
            run(index, number)
            run(expected, number)
            assert snapshot(index) == snapshot(expected), at
            at += 1
    assert at > 100
    assert set(outcomes) == {0, 1}


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_interrupted_while_a_failure_is_undone(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the failed session is there, also after the next commit."""
    monkeypatch.setattr(sessions, "HELD_CHANGES", 8)
    with open_at(PLACES[name].fresh(request)) as index:

        def fail() -> None:
            with suppress(ZeroDivisionError), index.session(), index.session():
                for number in range(SIZE):
                    index.results.put(b"%d" % number, b"never")
                raise ZeroDivisionError

        at = 0
        while traced(fail, interrupted_at=at):
            assert not index.has_session, at
            with index.session():
                index.results.put(b"next", b"%d" % at)
            assert dict(index.results.scan()) == {b"next": b"%d" % at}
            at += 1
    assert at > 50


def test_interrupted_inside_a_block_that_goes_on() -> None:
    """The outer block's end says so, unless everything that it wrote is there."""
    ends = set()
    with open_at("memory://") as index:

        def inner() -> None:
            with index.session():
                index.results.put(b"inner", b"%d" % at)

        at, interrupted = 0, True
        while interrupted:
            ending = b"%d" % at
            end = "refused"
            with suppress(Invalid):
                with index.session():
                    index.results.put(b"outer", ending)
                    interrupted = traced(inner, interrupted_at=at)
                end = "done"
            assert (index.results.get(b"outer") == ending) == (end == "done"), at
            assert end == "done" or index.results.get(b"inner") != ending, at
            assert not index.has_session
            ends.add(end)
            at += 1
    assert ends == {"refused", "done"}


@pytest.mark.parametrize("name", PLACES)
def test_interrupted_at_every_step(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELD_CHANGES", sessions.HELD_CHANGES)  # both back at the end
    monkeypatch.setattr(configuration, "RESET_CHUNK", configuration.RESET_CHUNK)
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "SPILL_BYTES", module.SPILL_BYTES)
    small_chunks()
    outcomes = set()
    url = PLACES[name].fresh(request)
    index = open_at(url)
    with open_at("memory://") as expected:
        run(expected, 1)
        events = run(index, 1)
        number = 1
        for at, event in enumerate(events):
            with pytest.raises(KeyboardInterrupt):
                run(index, number + 1, interrupted_at=at)
            if name == "slatedb":  # cannot tell what became of a commit that was interrupted, before it is opened again
                index.close()
                index = open_at(url)
            assert index.results.get(b"last") in (b"%d" % number, b"%d" % (number + 1)), event
            reached = snapshot(index)[1]["a"].sequence
            outcomes.add(reached - number)
            for done in range(number + 1, reached + 1):
                run(expected, done)
            assert snapshot(index) == snapshot(expected), event
            number = reached + 1
            run(index, number)
            run(expected, number)
            assert snapshot(index) == snapshot(expected), event
    index.close()
    assert outcomes == {0, 1}
