"""Retries of events under workers: counted in the store, and nobody sleeps meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.errors import Invalid
from holdfast.projections import Event, OnError, ProjectionRunner, ProjectionStore, ProjectionWorker, View, state
from holdfast.testing.conformance.projections.subject import (
    NOW,
    Boom,
    Doubled,
    Other,
    ProjectionsUnderTest,
    Turnover,
    contents,
    fresh_fold,
    paid,
)

PATIENCE = 30.0


class Poisoned(Turnover):
    """Never handles a bad event, and counts its attempts."""

    def __init__(self, tried: list[int]) -> None:
        self.tried = tried

    def handle(self, event: Event, view: View) -> None:
        if event.json()["cents"] == "bad":
            self.tried.append(event.position)
        super().handle(event, view)


@contextmanager
def running(*workers: ProjectionWorker) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(PATIENCE)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class RetryConformance(ProjectionsUnderTest):
    """`OnError.retries` with `ProjectionWorker`, and `catch_up_persistent(wait=False)`."""

    def poisoned(self, **options: Any) -> ProjectionStore:
        store = self.open(**options)
        store.append("a", [paid(1), paid("bad"), paid(2)])
        return store

    def test_two_workers_with_a_pause_longer_than_their_lease_give_an_event_up(self) -> None:
        """The one that sleeps loses its lease. If each counted for itself, neither would ever come to an end."""
        store = self.poisoned(clock=time.time)
        policy = OnError(retries=2, wait=0.4, then="dead-letter")
        tried: list[int] = []
        workers = [
            ProjectionWorker(ProjectionRunner(store, on_error=policy), [Poisoned(tried)], tick=0.05, lease=0.2)
            for _ in range(2)
        ]
        with running(*workers):
            wait_until(lambda: store.projections() and store.projections()[0].dead_letters, "no dead letter")
        [letter] = store.dead_letters("turnover")
        assert (letter.position, letter.attempts, tried) == (2, 3, [2, 2, 2])

    def test_the_count_survives_take_overs_and_restarts(self) -> None:
        now = NOW
        store = self.poisoned(clock=lambda: now)
        tried: list[int] = []

        def worker() -> ProjectionWorker:
            policy = OnError(retries=3, wait=40.0, then="dead-letter")
            return ProjectionWorker(ProjectionRunner(store, on_error=policy), [Poisoned(tried)], lease=30.0)

        first = worker()
        assert not first.turn()
        health = first.health().projections["turnover"]
        assert (health.state, health.position, tried) == ("retrying", 1, [2])
        assert "bad amount" in (health.error or "")
        now += 31  # as if the first had stalled: its lease has run out, and the event is not due
        second = worker()
        assert not second.turn()
        assert (second.health().projections["turnover"].state, tried) == ("retrying", [2])
        now += 10
        second.turn()
        assert tried == [2, 2]
        if self.abilities.persistent:
            store.close()
            store = self.open(clock=lambda: now)
        now += 59  # the second pause would be 80 seconds, but the longest one is 60
        third = worker()
        third.turn()
        assert tried == [2, 2]
        now += 1
        third.turn()
        assert tried == [2, 2, 2]
        now += 60
        third.turn()
        assert (third.health().projections["turnover"].state, tried) == ("idle", [2, 2, 2, 2])
        assert [letter.attempts for letter in store.dead_letters("turnover")] == [4]
        assert contents(store) == fresh_fold(store)

    def test_a_waiting_event_delays_neither_a_stop_nor_the_other_projections(self) -> None:
        store = self.poisoned(clock=time.time)
        runner = ProjectionRunner(store, on_error=OnError(retries=5, wait=60.0))

        class Sound(Other):
            def handle(self, event: Event, view: View) -> None:
                if event.json()["cents"] != "bad":
                    super().handle(event, view)

        worker = ProjectionWorker(runner, [Poisoned([]), Sound()], tick=60.0)
        with running(worker) as [thread]:
            wait_until(lambda: worker.health().projections["turnover"].state == "retrying", "no retry")
            event = store.append("b", [paid(7)])[0]
            store.wait_for("other", event.position, timeout=PATIENCE)
            assert worker.health().projections["other"].error is None
            worker.stop()
            thread.join(5.0)
            assert not thread.is_alive()

    def test_a_worker_keeps_its_lease_while_an_event_waits(self) -> None:
        now = NOW
        store = self.poisoned(clock=lambda: now)
        policy = OnError(retries=1, wait=50.0)
        first, second = (
            ProjectionWorker(ProjectionRunner(store, on_error=policy), [Poisoned([])], lease=30.0) for _ in range(2)
        )
        first.turn()
        for _ in range(4):
            now += 10
            first.turn()
            second.turn()
            assert second.health().projections["turnover"].state == "waiting"

    def test_a_series_that_ended_in_a_stop_begins_anew(self) -> None:
        now = NOW
        store = self.poisoned(clock=lambda: now)
        tried: list[int] = []
        worker = ProjectionWorker(
            ProjectionRunner(store, on_error=OnError(retries=1, wait=2.0)), [Poisoned(tried)], lease=30.0
        )
        for times in (2, 4):
            worker.turn()
            now += 2
            worker.turn()
            health = worker.health().projections["turnover"]
            assert (health.state, len(tried)) == ("failed", times)
            assert "2 times" in (health.error or "")
            worker.resume("turnover")
        assert store.lag("turnover").position == 1

    def test_a_clock_that_was_set_back_holds_no_event_up(self) -> None:
        now = NOW
        store = self.poisoned(clock=lambda: now)
        tried: list[int] = []
        runner = ProjectionRunner(store, on_error=OnError(retries=1, wait=2.0, then="dead-letter"))
        done = runner.catch_up_persistent(Poisoned(tried), wait=False)
        assert (done.position, done.is_at_the_end, tried) == (1, False, [2])
        assert done.failed is not None
        assert (done.failed.position, done.failed.attempts) == (2, 1)
        now -= 3600
        assert runner.catch_up_persistent(Poisoned(tried), wait=False).dead_lettered == 1

    def test_a_rebuild_counts_for_itself(self) -> None:
        now = NOW
        store = self.open(clock=lambda: now)
        store.append("a", [paid(1), paid(5), paid(2)])
        ProjectionRunner(store).catch_up_persistent(Turnover())

        class Picky(Doubled):
            def handle(self, event: Event, view: View) -> None:
                if event.position == 2:
                    raise Boom("not this one")
                super().handle(event, view)

        runner = ProjectionRunner(
            store, on_error=OnError(retries=1, wait=2.0, then="dead-letter"), on_version="rebuild"
        )
        done = runner.catch_up_persistent(Picky(), wait=False)
        assert (done.position, done.is_at_the_end) == (3, False)
        assert done.failed is not None
        assert contents(store) == fresh_fold(store)
        now += 2
        assert runner.catch_up_persistent(Picky(), wait=False).is_at_the_end
        assert [letter.attempts for letter in store.dead_letters("turnover")] == [2]

    @pytest.mark.parametrize("view", ["keep", "replay"])
    def test_going_back_forgets_the_count(self, view: str) -> None:
        store = self.poisoned()
        runner = ProjectionRunner(store, on_error=OnError(retries=1, wait=2.0))
        runner.catch_up_persistent(Poisoned([]), wait=False)
        runner.rewind(Turnover(), 0, view=view)
        found = state.read(store.kv, state.live_build("turnover").key, store.address)
        assert found is not None
        assert (found.position, found.failed) == (0, None)

    def test_a_stop_without_a_worker_names_all_attempts(self) -> None:
        store = self.poisoned()
        runner = ProjectionRunner(store, on_error=OnError(retries=1, wait=2.0))
        assert runner.catch_up_persistent(Turnover(), wait=False).failed is not None
        waits: list[float] = []
        runner = ProjectionRunner(store, on_error=OnError(retries=1, wait=2.0), sleep=waits.append)
        with pytest.raises(Invalid, match="2 times"):
            runner.catch_up_persistent(Turnover())
        assert waits == [2.0]
