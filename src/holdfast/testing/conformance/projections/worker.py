"""Workers and their leases."""

from __future__ import annotations

import threading

import pytest

from holdfast.errors import Conflict, Fenced, Invalid, NotFound
from holdfast.projections import Event, OnError, ProjectionRunner, ProjectionWorker, View, rebuild, worker_lease
from holdfast.projections.worker import TURN
from holdfast.testing.conformance.projections.retries import running, wait_until
from holdfast.testing.conformance.projections.subject import (
    NOW,
    Boom,
    CaughtUpUnderTest,
    Doubled,
    Other,
    Turnover,
    contents,
    fresh_fold,
    paid,
    spaces_left,
)


class Failing(Turnover):
    name = "failing"

    def __init__(self) -> None:
        self.tried = 0

    def handle(self, event: Event, view: View) -> None:
        self.tried += 1
        raise Boom("always")


class WorkerConformance(CaughtUpUnderTest):
    """`ProjectionWorker`, `worker_lease`."""

    def test_leases(self) -> None:
        now = NOW
        store, runner = self.caught_up(clock=lambda: now)
        mine = worker_lease.acquire(store.kv, "turnover", "me", 30, store.now_ms)
        assert mine is not None
        assert worker_lease.acquire(store.kv, "turnover", "you", 30, store.now_ms) is None
        assert store.projections()[0].holder == "me"
        now += 20
        mine.renew()
        now += 20
        assert worker_lease.acquire(store.kv, "turnover", "you", 30, store.now_ms) is None
        store.append("order-1", [paid(5)])
        assert runner.catch_up_persistent(Turnover(), lease=mine).handled == 1  # which prolongs it
        now += 20
        assert worker_lease.acquire(store.kv, "turnover", "you", 30, store.now_ms) is None
        now += 20
        yours = worker_lease.acquire(store.kv, "turnover", "you", 30, store.now_ms)  # mine has run out
        assert yours is not None
        store.append("order-1", [paid(5)])
        for call in (
            lambda: runner.catch_up_persistent(Turnover(), lease=mine),
            lambda: runner.rebuild(Turnover(), lease=mine),
            mine.renew,
        ):
            with pytest.raises(Fenced) as caught:
                call()
            assert caught.value.code == "projection.fenced"
        mine.release()
        assert worker_lease.acquire(store.kv, "turnover", "me", 30, store.now_ms) is None
        assert runner.catch_up_persistent(Turnover(), lease=yours).handled == 1
        yours.release()
        again = worker_lease.acquire(store.kv, "turnover", "me", 30, store.now_ms)
        assert again is not None
        assert again.token > yours.token
        assert contents(store) == fresh_fold(store)

    def test_a_worker(self) -> None:
        store, runner = self.caught_up()
        worker = ProjectionWorker(runner, [Turnover(), Other()], tick=0.05)
        assert not worker.health().is_healthy
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            for number in range(5):
                event = store.append(f"order-{number}", [paid(number)])[0]
                for name in ("turnover", "other"):
                    store.wait_for(name, event.position, timeout=30)
                    assert contents(store, name) == fresh_fold(store)
        finally:
            worker.stop()
            thread.join(30)
        assert not thread.is_alive()
        health = worker.health()
        assert not health.is_healthy
        assert {found.state for found in health.projections.values()} == {"stopped"}
        assert [found.holder for found in store.projections()] == [None, None]  # the leases are free at once

    def test_a_projection_that_fails_stops_alone_and_shows(self) -> None:
        store, runner = self.caught_up()
        projection = Failing()
        worker = ProjectionWorker(runner, [projection, Other()])
        worker._is_running = True
        assert not worker.turn()
        failing, other = worker.health().projections["failing"], worker.health().projections["other"]
        assert (failing.state, failing.last_success_ms, other.state) == ("failed", None, "idle")
        assert failing.error is not None
        assert "always" in failing.error
        assert other.last_success_ms == int(NOW * 1000)
        assert not worker.health().is_healthy
        worker.turn()
        assert (worker.health().projections["failing"].state, projection.tried) == ("failed", 1)
        worker.resume("failing")
        assert worker.health().is_healthy
        worker.turn()
        assert (worker.health().projections["failing"].state, projection.tried) == ("failed", 2)
        with pytest.raises(NotFound):
            store.lag("failing")

    def test_of_two_workers_one_works_and_the_other_waits(self) -> None:
        now = NOW
        store, _ = self.caught_up(clock=lambda: now)
        store.append("order-1", [paid(5)])
        runner = ProjectionRunner(store)
        first, second = ProjectionWorker(runner, [Turnover()]), ProjectionWorker(runner, [Turnover()])
        first.turn()
        second.turn()
        assert [w.health().projections["turnover"].state for w in (first, second)] == ["idle", "waiting"]
        now += 31  # as if the first had stalled: its lease has run out
        second.turn()
        store.append("order-1", [paid(5)])
        first.turn()
        assert [w.health().projections["turnover"].state for w in (first, second)] == ["waiting", "idle"]
        second.turn()
        assert contents(store) == fresh_fold(store)
        second.stop()
        second.run()
        first.turn()
        assert first.health().projections["turnover"].state == "idle"

    def test_an_idle_worker_reads_and_writes_next_to_nothing(self) -> None:
        _, runner = self.caught_up()
        worker = ProjectionWorker(runner, [Turnover()])
        worker.turn()
        self.counts.forget()
        worker.turn()
        assert (len(self.counts.reads), self.counts.commits) == (2, [])

    def test_a_worker_puts_events_aside_as_told(self) -> None:
        store = self.open()
        store.append("a", [paid("bad"), paid(1)])
        worker = ProjectionWorker(ProjectionRunner(store, on_error=OnError(then="dead-letter")), [Turnover()])
        worker.turn()
        assert worker.health().projections["turnover"].state == "idle"
        assert len(store.dead_letters("turnover")) == 1
        assert store.projections()[0].dead_letters == 1

    def test_two_of_one_name(self) -> None:
        with pytest.raises(Invalid):
            ProjectionWorker(ProjectionRunner(self.open()), [Turnover(), Doubled()])

    def test_a_rebuild_leaves_turns_to_the_other_projections(self) -> None:
        """A new version reads the whole log. Meanwhile the others are at most one turn behind."""
        store, _ = self.caught_up()
        store.append("order-1", [paid(1)] * 30)
        ProjectionRunner(store).catch_up_persistent(Turnover())
        runner = ProjectionRunner(store, batch=2, on_version="rebuild")
        worker = ProjectionWorker(runner, [Doubled(), Other()])
        assert worker.turn()
        assert store.projections()[-1].rebuilding == 2 * TURN
        assert store.lag("other").position == 2 * TURN
        assert contents(store) == fresh_fold(store)
        while worker.turn():
            pass
        assert store.lag("other").events == 0
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))

    def test_an_old_build_is_removed_in_several_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rebuild, "CHUNK", 1)
        store, _ = self.caught_up()
        store.append("order-1", [paid(1)] * 30)
        ProjectionRunner(store).catch_up_persistent(Turnover())
        worker = ProjectionWorker(ProjectionRunner(store, on_version="rebuild"), [Doubled()])
        self.counts.forget()
        worker.turn()
        assert store.projections()[0].version == 2
        assert spaces_left(store)[0] == 2  # the old one is too large for one turn
        while spaces_left(store) != (1, 0):
            self.counts.forget()
            worker.turn()
            assert 0 < len(self.counts.commits) <= TURN + 2
        worker.turn()
        self.counts.forget()
        worker.turn()
        assert self.counts.commits == []

    def test_a_worker_goes_on_after_another_rebuild_has_overtaken_its_own(self) -> None:
        store, _ = self.caught_up()

        class Overtaken(Doubled):
            is_first = True

            def handle(self, event: Event, view: View) -> None:
                if event.position == 3 and Overtaken.is_first:
                    Overtaken.is_first = False
                    ProjectionRunner(store).rebuild(Doubled())
                super().handle(event, view)

        worker = ProjectionWorker(ProjectionRunner(store, batch=2, on_version="rebuild"), [Overtaken()], tick=0.01)
        worker.turn()
        assert worker.health().projections["turnover"].state == "retrying"
        with running(worker):
            wait_until(lambda: worker.health().projections["turnover"].state == "idle", "it has not gone on")
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))

    def test_a_worker_whose_store_was_taken_says_that_it_must_be_started_again(self) -> None:
        _, runner = self.caught_up()
        worker = ProjectionWorker(runner, [Turnover()])
        if self.abilities.second_opening == "refused":
            with pytest.raises(Conflict):
                self.open()
        else:
            self.open().append("order-1", [paid(5)])
        worker.turn()
        found = worker.health().projections["turnover"]
        if self.abilities.second_opening == "fences":
            assert found.state == "failed"
            assert "start it anew when the other process has ended" in (found.error or "")
        else:
            assert found.state == "idle"
