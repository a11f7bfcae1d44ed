"""^C at any step of a session: results and checkpoints agree, reads are right, and the next session goes through."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from index_places import PLACES
from index_works import open_at, session, small_chunks, snapshot

from holdfast.sources import Index, memory, resetting, sessions
from holdfast.steps import Phase, observe

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


def traced(index: Index, number: int, *, interrupted_at: int) -> bool:
    """A session that a signal interrupts at this instruction of the code that keeps sessions, if it has so many."""
    left = interrupted_at
    files = {sessions.__file__, memory.__file__}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event in ("call", "opcode"):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        session(number, SIZE)(index)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_interrupted_at_every_instruction(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or not at all, no session is left, and the next one is not taken for part of one that is."""
    monkeypatch.setattr(sessions, "HELD_CHANGES", 8)
    outcomes = []
    with open_at(PLACES[name].fresh(request)) as index, open_at("memory://") as expected:
        number, at = 1, 0
        run(expected, 1)
        run(index, 1)
        while traced(index, number + 1, interrupted_at=at):
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
    assert at > 500
    assert set(outcomes) == {0, 1}


@pytest.mark.parametrize("name", PLACES)
def test_interrupted_at_every_step(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELD_CHANGES", sessions.HELD_CHANGES)  # both back at the end
    monkeypatch.setattr(resetting, "CHUNK", resetting.CHUNK)
    small_chunks()
    outcomes = set()
    with open_at(PLACES[name].fresh(request)) as index, open_at("memory://") as expected:
        run(expected, 1)
        events = run(index, 1)
        number = 1
        for at, event in enumerate(events):
            with pytest.raises(KeyboardInterrupt):
                run(index, number + 1, interrupted_at=at)
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
    assert outcomes == {0, 1}
