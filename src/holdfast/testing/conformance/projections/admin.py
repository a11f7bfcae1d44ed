"""Lag, waiting, resets, rewinds, rebuilds, versions, leases and workers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.base.steps import observe
from holdfast.errors import Corrupt, Fenced, Invalid, NotFound, Unavailable
from holdfast.projections import (
    Append,
    Event,
    OnError,
    ProjectionRunner,
    ProjectionStore,
    ProjectionWorker,
    ReadModel,
    View,
    state,
    worker_lease,
)
from holdfast.testing.conformance.projections.subject import (
    NOW,
    Boom,
    CountedStore,
    ProjectionsUnderTest,
    Turnover,
    contents,
    fresh_fold,
    paid,
)


class Doubled(Turnover):
    """The next version: another read model from the same events."""

    version = 2

    def handle(self, event: Event, view: View) -> None:
        super().handle(event, view)
        view.put(b"total", b"%d" % (int(view.get(b"total") or 0) + event.json()["cents"]))


class Other(Turnover):
    name = "other"


class Failing(Turnover):
    name = "failing"

    def __init__(self) -> None:
        self.tried = 0

    def handle(self, event: Event, view: View) -> None:
        self.tried += 1
        raise Boom("always")


def spaces_left(store: ProjectionStore) -> tuple[int, int]:
    """How many builds have keys in read models, and how many cursors of rebuilds are left."""
    builds = {key[: len(b"turnover/") + 8] for key, _ in store.kv.scan("views", b"turnover/", b"turnover0")}
    return len(builds), len(list(store.kv.scan("shadows", b"", None)))


class LifeConformance(ProjectionsUnderTest):
    """`lag`, `wait_for`, `reset`, `rewind`, `rebuild`, `ProjectionWorker`."""

    def caught_up(self, **options: Any) -> tuple[ProjectionStore, ProjectionRunner]:
        store = self.open(**options)
        store.append_many([Append(f"order-{n}", [paid(n + 1), paid(10)]) for n in range(3)])
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Turnover())
        return store, runner

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

    def test_another_version(self) -> None:
        store, runner = self.caught_up()
        with pytest.raises(Invalid) as caught:
            runner.catch_up_persistent(Doubled())
        assert caught.value.code == "projection.version"
        assert contents(store) == fresh_fold(store)
        store.append("order-1", [paid(7)])
        ProjectionRunner(store, on_version="rebuild").catch_up_persistent(Doubled())
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))
        assert store.projections()[0].version == 2
        with pytest.raises(Invalid):
            runner.catch_up_persistent(Turnover())

    def test_another_version_is_switched_to_in_the_middle_of_a_batch(self) -> None:
        store, runner = self.caught_up()
        store.append("order-1", [paid(7)])

        class Overtaken(Turnover):
            def handle(self, event: Event, view: View) -> None:
                super().handle(event, view)
                ProjectionRunner(store).rebuild(Doubled())
                store.append("order-1", [paid(1)])

        with pytest.raises(Invalid) as caught:
            runner.catch_up_persistent(Overtaken())
        assert caught.value.code == "projection.version"
        assert store.projections()[0].version == 2
        runner.catch_up_persistent(Doubled())
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))

    def test_rebuild_beside_the_live_one(self) -> None:
        store, _ = self.caught_up()
        store.append("order-1", [paid(7)])
        seen: list[dict[bytes, bytes]] = []
        model = store.view("turnover")

        class Watching(Doubled):
            def handle(self, event: Event, view: View) -> None:
                super().handle(event, view)
                if event.position == 4:  # meanwhile the live one is read, caught up and appended to
                    seen.append(dict(model.scan()))
                    ProjectionRunner(store).catch_up_persistent(Turnover())
                    store.append("late", [paid(5)])
                    seen.append(dict(model.scan()))
                    assert store.projections()[0].rebuilding is not None

        marks: list[tuple[int, int]] = []
        done = ProjectionRunner(store, batch=2).rebuild(Watching(), progress=lambda *mark: marks.append(mark))
        assert seen == [fresh_fold(store, 6), fresh_fold(store, 7)]
        assert (done.position, done.handled, marks[-1]) == (8, 8, (8, 8))
        assert dict(model.scan())[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))
        expected = {"order-0": 2, "order-1": 3, "order-2": 2, "late": 1}
        assert store.load_projection_checkpoint("turnover").cursors == expected
        assert spaces_left(store) == (1, 0)
        [status] = store.projections()
        assert (status.version, status.rebuilding, status.lag.events) == (2, None, 0)
        store = self.reopened(store)
        store.append("late", [paid(1)])
        ProjectionRunner(store).catch_up_persistent(Doubled())
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))

    def test_the_live_one_has_come_further_when_it_is_time_to_switch(self) -> None:
        store, runner = self.caught_up()

        def go_on(name: str, phase: str, _: float) -> None:
            if (name, phase) == ("rebuild.switch", "begin") and store.position == 6:
                store.append("late", [paid(5)])
                runner.catch_up_persistent(Turnover())

        stop = observe(go_on)
        try:
            assert ProjectionRunner(store).rebuild(Turnover()).position == 7
        finally:
            stop()
        assert contents(store) == fresh_fold(store)
        assert store.load_projection_checkpoint("turnover").cursor_for("late") == 1

    def test_a_reader_is_not_told_of_a_build_that_was_swept_meanwhile(self) -> None:
        store, _ = self.caught_up()
        expected = contents(store)
        kv = self.counts.kv
        is_first = True

        class Interrupting(CountedStore):
            def scan(self, space: Any, *arguments: Any) -> Any:
                nonlocal is_first
                if space == "views" and is_first:
                    is_first = False
                    ProjectionRunner(store).rebuild(Turnover())
                return super().scan(space, *arguments)

        assert dict(ReadModel(Interrupting(kv), "turnover").scan()) == expected
        assert not is_first

    def test_the_switch_is_one_commit(self) -> None:
        store, runner = self.caught_up()
        before = contents(store)
        self.counts.forget()
        runner.rebuild(Doubled())
        switches = [commit for commit in self.counts.commits if commit.get("meta", {}).get(b"b/turnover", b"") is None]
        assert len(switches) == 1
        assert switches[0].keys() == {"meta"}  # no cursor has changed
        assert switches[0]["meta"].keys() == {b"p/turnover", b"b/turnover"}
        assert contents(store) != before

    def test_rebuild_with_no_live_one(self) -> None:
        store = self.open()
        store.append("a", [paid(1)])
        ProjectionRunner(store).rebuild(Turnover())
        assert contents(store) == fresh_fold(store)
        assert ProjectionRunner(store).catch_up_persistent(Turnover()).handled == 0

    def test_a_rebuild_that_fails_leaves_the_live_one_and_can_be_resumed(self) -> None:
        class Once(Doubled):
            def __init__(self) -> None:
                self.handled: list[int] = []
                self.fails = True

            def handle(self, event: Event, view: View) -> None:
                if event.position == 5 and self.fails:
                    raise Boom("not yet")
                self.handled.append(event.position)
                super().handle(event, view)

        store, _ = self.caught_up()
        runner = ProjectionRunner(store, batch=2)
        projection = Once()
        with pytest.raises(Invalid):
            runner.rebuild(projection)
        store = self.reopened(store)
        assert contents(store) == fresh_fold(store)
        assert store.projections()[0].rebuilding == 4
        projection.fails = False
        runner = ProjectionRunner(store, batch=2)
        runner.rebuild(projection, resume=True)
        assert projection.handled == [1, 2, 3, 4, 5, 6]
        doubled = contents(store)
        runner.rebuild(projection)
        assert projection.handled[6:] == [1, 2, 3, 4, 5, 6]
        assert contents(store) == doubled
        assert spaces_left(store) == (1, 0)

    def test_of_two_rebuilds_the_later_one_wins(self) -> None:
        store, _ = self.caught_up()
        runner = ProjectionRunner(store, batch=2)

        class Overtaken(Doubled):
            def handle(self, event: Event, view: View) -> None:
                if event.position == 3:
                    ProjectionRunner(store).rebuild(Doubled())
                super().handle(event, view)

        with pytest.raises(Fenced) as caught:
            runner.rebuild(Overtaken())
        assert caught.value.code == "projection.rebuild-fenced"
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))
        assert ProjectionRunner(store).catch_up_persistent(Doubled()).handled == 0
        assert spaces_left(store) == (1, 0)

    def test_a_reset_ends_a_rebuild(self) -> None:
        store, _ = self.caught_up()

        class Overtaken(Turnover):
            def handle(self, event: Event, view: View) -> None:
                if event.position == 3:
                    ProjectionRunner(store).reset("turnover")
                super().handle(event, view)

        with pytest.raises(Fenced):
            ProjectionRunner(store, batch=2).rebuild(Overtaken())
        assert contents(store) == {}
        ProjectionRunner(store).catch_up_persistent(Turnover())
        assert contents(store) == fresh_fold(store)

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

    def test_told_to_stop(self) -> None:
        """Between two batches: a rebuild stays where it is, and the next one goes on."""
        store, _ = self.caught_up()
        runner = ProjectionRunner(store, batch=2, on_version="rebuild")
        answers = iter([False, True])
        done = runner.catch_up_persistent(Doubled(), stop=lambda: next(answers))
        assert (done.is_at_the_end, contents(store)) == (False, fresh_fold(store))
        assert store.projections()[0].rebuilding == 2
        done = runner.catch_up_persistent(Doubled())
        assert done.is_at_the_end
        assert contents(store)[b"total"] == b"%d" % (2 * int(fresh_fold(store)[b"total"]))

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

    def test_a_damaged_state(self) -> None:
        store, runner = self.caught_up()
        self.plant(store, "meta", state.live_build("turnover").key, b"nonsense")
        with pytest.raises(Corrupt, match="turnover"):
            runner.catch_up_persistent(Turnover())
