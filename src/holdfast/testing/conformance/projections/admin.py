"""Lag, waiting, resets and rewinds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import Corrupt, Invalid, NotFound, Unavailable
from holdfast.projections import Append, Event, ProjectionRunner, ProjectionStore, View, state
from holdfast.projections.event_log import PAGE
from holdfast.testing.conformance.projections.subject import (
    NOW,
    CaughtUpUnderTest,
    CountedStore,
    Doubled,
    Other,
    Turnover,
    contents,
    fresh_fold,
    paid,
    spaces_left,
)


class AdminConformance(CaughtUpUnderTest):
    """`lag`, `wait_for`, `reset`, `rewind`."""

    def test_lag(self) -> None:
        store, runner = self.caught_up()
        assert (store.lag("turnover").events, store.lag("turnover").position) == (0, 6)
        store.append("order-1", [paid(1), paid(1)])
        assert store.lag("turnover").events == 2
        [found] = store.projections()
        assert (found.name, found.version, found.lag.events, found.streams) == ("turnover", 1, 2, 3)
        assert (found.dead_letters, found.rebuilding, found.holder, found.updated_ms) == (
            0,
            None,
            None,
            int(NOW * 1000),
        )
        runner.catch_up_persistent(Turnover())
        assert store.lag("turnover").events == 0
        with pytest.raises(NotFound) as caught:
            store.lag("nobody")
        assert caught.value.code == "projection.unknown"

    def test_wait_for_ones_own_writes(self) -> None:
        store, runner = self.caught_up()
        store.wait_for("turnover", 6, timeout=0)
        event = store.append("order-1", [paid(1)])[-1]
        with pytest.raises(Unavailable) as caught:
            store.wait_for("turnover", event.position, timeout=0.01)
        assert caught.value.code == "wait.timeout"
        thread = threading.Thread(target=lambda: runner.catch_up_persistent(Turnover()))
        thread.start()
        store.wait_for("turnover", event.position, timeout=30)
        assert contents(store) == fresh_fold(store)
        thread.join()

    def test_reset(self) -> None:
        store, runner = self.caught_up()
        runner.catch_up_persistent(Other())
        store.append("order-9", [paid(1)])
        ProjectionRunner(store).reset("turnover")
        assert contents(store) == {}
        assert store.load_projection_checkpoint("turnover").cursors == {}
        assert store.lag("turnover").events == 7
        assert spaces_left(store) == (0, 0)
        assert contents(store, "other") == fresh_fold(store, 6)
        store = self.reopened(store)
        ProjectionRunner(store).catch_up_persistent(Doubled())  # a reset one takes any version
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))
        with pytest.raises(NotFound):
            ProjectionRunner(store).reset("nobody")

    def test_rewind_makes_the_read_model_as_of_a_position(self) -> None:
        store, runner = self.caught_up()
        done = runner.rewind(Turnover(), 3)
        assert done.position == store.lag("turnover").position == 3
        assert contents(store) == fresh_fold(store, 3)
        assert store.load_projection_checkpoint("turnover").cursors == {"order-0": 2, "order-1": 1}
        runner.catch_up_persistent(Turnover())
        assert contents(store) == fresh_fold(store)

    def test_rewind_that_keeps_the_read_model_handles_events_again(self) -> None:
        store, runner = self.caught_up()
        before = int(contents(store)[b"total"])
        runner.rewind(Turnover(), 3, view="keep")
        assert store.load_projection_checkpoint("turnover").cursors == {"order-0": 2, "order-1": 1}
        assert int(contents(store)[b"total"]) == before
        assert runner.catch_up_persistent(Turnover()).handled == 3
        assert int(contents(store)[b"total"]) == before + 10 + 3 + 10
        assert store.load_projection_checkpoint("turnover").cursors == {f"order-{n}": 2 for n in range(3)}
        for position, code in ((7, "projection.rewind"), (-1, "argument.refused")):
            with pytest.raises(Invalid) as caught:
                runner.rewind(Turnover(), position, view="keep")
            assert caught.value.code == code
        with pytest.raises(Invalid):
            runner.rewind(Turnover(), 1, view="other")

    def test_a_reset_during_a_catch_up_is_not_undone(self) -> None:
        store, _ = self.caught_up()
        store.append("order-1", [paid(5)])

        class Overtaken(Turnover):
            is_first = True

            def handle(self, event: Event, view: View) -> None:
                if Overtaken.is_first:
                    Overtaken.is_first = False
                    ProjectionRunner(store).reset("turnover")
                super().handle(event, view)

        ProjectionRunner(store).catch_up_persistent(Overtaken())
        assert contents(store) == fresh_fold(store)
        assert store.load_projection_checkpoint("turnover").cursors == {"order-0": 2, "order-1": 3, "order-2": 2}

    def test_a_damaged_state(self) -> None:
        store, runner = self.caught_up()
        self.plant(store, "meta", state.live_build("turnover").key, b"nonsense")
        with pytest.raises(Corrupt, match="turnover"):
            runner.catch_up_persistent(Turnover())

    def test_rewind_reads_events_before_it_takes_the_store(self) -> None:
        """However long the log is: others append and catch up while it is read."""
        store, _ = self.caught_up()
        kv = self.counts.kv
        is_first = True

        class Busy(CountedStore):
            def scan(self, space: Any, *arguments: Any) -> Any:
                nonlocal is_first
                rows = list(super().scan(space, *arguments))
                if space == "events" and is_first:
                    is_first = False
                    store.append_many([Append("order-1", [paid(1)]), Append("late", [paid(2)] * (PAGE + 1))])
                    ProjectionRunner(store).catch_up_persistent(Turnover())
                return iter(rows)

        busy = ProjectionStore(Busy(kv), clock=lambda: NOW)
        ProjectionRunner(busy).rewind(Turnover(), 3, view="keep")
        assert not is_first
        assert store.load_projection_checkpoint("turnover").cursors == {"order-0": 2, "order-1": 1}
        assert ProjectionRunner(store).catch_up_persistent(Turnover()).handled == 3 + PAGE + 2
