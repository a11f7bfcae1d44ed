"""^C at any step of a session: results and checkpoints agree, reads are right, and the next session goes through."""

from __future__ import annotations

import pytest
from index_places import PLACES
from index_works import open_at, session, small_chunks, snapshot

from holdfast.sources import Index, resetting, sessions
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
