"""Any order of appends, catch-ups, crashes, restarts, rebuilds and rewinds: the read model is always a fresh fold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from projection_places import PLACES, Place
from projection_works import check

from holdfast.base.steps import Phase, observe
from holdfast.errors import Conflict
from holdfast.projections import Append, Event, OnError, ProjectionRunner, View, open_projections, rebuild
from holdfast.testing.conformance.projections.subject import Turnover, paid

STREAMS = st.sampled_from(["a", "a/b", "b", "\0"])
AMOUNTS = st.lists(st.integers(-5, 5) | st.just("bad"), min_size=1, max_size=5)


class Died(BaseException):
    """The process is gone, as far as the code under test can tell."""


class Machine(RuleBasedStateMachine):
    """A store beside the events that it should hold."""

    place: Place
    request: Any

    def __init__(self) -> None:
        super().__init__()
        self.url = self.place.fresh(self.request)
        self.is_persistent = self.place.abilities.persistent
        self.events: list[tuple[str, int | str]] = []
        self.has_run = False
        self.store = open_projections(self.url)

    def teardown(self) -> None:
        self.store.close()

    def runner(self, batch: int) -> ProjectionRunner:
        return ProjectionRunner(self.store, batch=batch, on_error=OnError(retries=1, wait=0.0, then="dead-letter"))

    def version(self, stream: str) -> int:
        return sum(found == stream for found, _ in self.events)

    @contextlib.contextmanager
    def dying(self, after: int | None) -> Iterator[None]:
        """Die at the nth event of a step, if there are as many; what is committed then stays, and nothing else."""
        seen = 0

        def observer(_: str, __: Phase, ___: float) -> None:
            nonlocal seen
            seen += 1
            if seen == after:
                raise Died

        stop = observe(observer)
        try:
            yield
        except Died:
            stop()
            self.reopen()
        else:
            stop()

    def reopen(self) -> None:
        if self.is_persistent:
            self.store.close()
            self.store = open_projections(self.url)

    @rule(stream=STREAMS, amounts=AMOUNTS, is_exact=st.booleans(), death=st.none() | st.integers(1, 6))
    def append(self, stream: str, amounts: list[int | str], is_exact: bool, death: int | None) -> None:
        expected = self.version(stream) if is_exact else "any"
        with self.dying(death):
            self.store.append(stream, [paid(amount) for amount in amounts], expected)  # type: ignore[arg-type]
        if self.store.position > len(self.events):
            self.events += [(stream, amount) for amount in amounts]

    @rule(streams=st.lists(STREAMS, max_size=4))
    def append_many(self, streams: list[str]) -> None:
        self.store.append_many([Append(stream, [paid(1)]) for stream in streams])
        self.events += [(stream, 1) for stream in streams]

    @rule(stream=STREAMS, off=st.sampled_from([-1, 1, 7]))
    def conflict(self, stream: str, off: int) -> None:
        if self.version(stream) + off >= 0:
            with pytest.raises(Conflict):
                self.store.append(stream, [paid(1)], self.version(stream) + off)

    @rule(batch=st.integers(1, 7), death=st.none() | st.integers(1, 20))
    def catch_up(self, batch: int, death: int | None) -> None:
        with self.dying(death):
            self.runner(batch).catch_up_persistent(Turnover())
            assert not self.events or self.store.lag("turnover").events == 0
        self.has_run = self.has_run or bool(self.store.projections())

    @rule(batch=st.integers(1, 7), at=st.integers(1, 10))
    def catch_up_while_others_do(self, batch: int, at: int) -> None:
        """In the middle of a batch another runner goes first, and events are appended."""
        machine = self

        class Busy(Turnover):
            is_first = True

            def handle(self, event: Event, view: View) -> None:
                if event.position >= at and Busy.is_first:
                    Busy.is_first = False
                    machine.store.append("b", [paid(3)])
                    machine.events.append(("b", 3))
                    machine.runner(2).catch_up_persistent(Turnover())
                super().handle(event, view)

        self.runner(batch).catch_up_persistent(Busy())
        self.has_run = self.has_run or bool(self.events)

    @precondition(lambda self: self.has_run)
    @rule(batch=st.integers(1, 7), resume=st.booleans(), death=st.none() | st.integers(1, 40))
    def rebuild(self, batch: int, resume: bool, death: int | None) -> None:
        with self.dying(death):
            self.runner(batch).rebuild(Turnover(), resume=resume)
            assert self.store.lag("turnover").events == 0

    @precondition(lambda self: self.has_run)
    @rule(share=st.floats(0, 1), death=st.none() | st.integers(1, 20))
    def rewind(self, share: float, death: int | None) -> None:
        position = int(share * self.store.lag("turnover").position)
        with self.dying(death):
            self.runner(3).rewind(Turnover(), position)
            assert self.store.lag("turnover").position == position

    @precondition(lambda self: self.has_run)
    @rule(death=st.none() | st.integers(1, 10))
    def reset(self, death: int | None) -> None:
        with self.dying(death):
            self.runner(3).reset("turnover")
            assert self.store.lag("turnover").position == 0

    @rule()
    def restart(self) -> None:
        self.reopen()

    @invariant()
    def is_a_fresh_fold(self) -> None:
        assert check(self.store) == len(self.events)
        assert [(event.stream, event.json()["cents"]) for event in self.store.read_all()] == self.events


QUICK = ("memory", "sqlite")
"""Where an example takes a tenth of a second; elsewhere it is up to a second, and make soak has many."""


@pytest.fixture(params=[name for name in PLACES if name != "slatedb-s3"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Machine]:
    monkeypatch.setattr(rebuild, "CHUNK", 4)
    return type("MachineHere", (Machine,), {"place": PLACES[request.param], "request": request})


def test_any_order_of_things(machine: type[Machine], request: pytest.FixtureRequest) -> None:
    examples = 25 if request.node.callspec.params["machine"] in QUICK else 10
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=25))


@pytest.mark.soak
def test_any_order_of_things_for_long(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=400, stateful_step_count=50, derandomize=False))
