"""Catching up: each event once, read model and cursors in one commit, and a cost that follows what changed."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import Corrupt, Invalid
from holdfast.projections import (
    Append,
    Event,
    GlobalProjectionCheckpoint,
    ProjectionRunner,
    View,
    batch,
    worker_lease,
)
from holdfast.testing.conformance.projections.subject import NOW, FilledUnderTest, Turnover, contents, fresh_fold, paid


class Orders(Turnover):
    """Some streams only."""

    name = "orders"
    streams = "order-"


class RunningConformance(FilledUnderTest):
    """`ProjectionRunner`."""

    def test_catch_up(self) -> None:
        store = self.filled()
        runner = ProjectionRunner(store)
        done = runner.catch_up_persistent(Turnover())
        assert (done.position, done.handled, done.cursors, done.dead_lettered) == (6, 6, 3, 0)
        self.check(store)
        assert contents(store)[b"total"] == b"12"
        store = self.reopened(store)
        store.append("order-1", [paid(100)])
        store.append("else", [paid(1000)])
        assert ProjectionRunner(store).catch_up_persistent(Turnover()).handled == 2
        self.check(store)
        assert ProjectionRunner(store).catch_up_persistent(Turnover()).handled == 0

    def test_read_model_and_cursors_are_one_commit_of_exactly_what_changed(self) -> None:
        store = self.filled(streams=200, events=1)
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Turnover())
        store.append_many([Append(f"order-{n}", [paid(1)]) for n in (5, 100, 199)])
        self.counts.forget()
        assert runner.catch_up_persistent(Turnover()).cursors == 3
        assert len(self.counts.commits) == 1
        cursors = self.counts.commits[0]["cursors"]
        assert cursors == {b"turnover/order-%d" % n: struct.pack("<Q", 2) for n in (5, 100, 199)}
        changed = {space: len(changes) for space, changes in self.counts.commits[0].items()}
        assert changed == {"cursors": 3, "views": 4, "meta": 1}
        assert self.counts.keys_read < 20  # of the three streams, not of two hundred

    @pytest.mark.parametrize("streams", [10, 300])
    def test_an_idle_tick_asks_twice_whatever_the_number_of_streams(self, streams: int) -> None:
        store = self.filled(streams=streams, events=1)
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Turnover())
        self.counts.forget()
        assert runner.catch_up_persistent(Turnover()).handled == 0
        assert (len(self.counts.reads), self.counts.keys_read) == (2, 1)
        assert self.counts.commits == []

    def test_batches(self) -> None:
        store = self.filled(streams=5, events=5)
        runner = ProjectionRunner(store, batch=4)
        done = runner.catch_up_persistent(Turnover(), batches=2)
        assert (done.position, done.handled, done.is_at_the_end) == (8, 8, False)
        self.check(store)
        assert runner.catch_up_persistent(Turnover(), until=10).position == 10
        self.check(store)
        assert runner.catch_up_persistent(Turnover()).handled == 15
        self.check(store)

    def test_a_prefix(self) -> None:
        store = self.open()
        for number in range(30):
            store.append("order-1" if number % 10 == 0 else f"other-{number}", [paid(1)])
        runner = ProjectionRunner(store, batch=4)
        done = runner.catch_up_persistent(Orders())
        assert (done.handled, done.position) == (3, 30)
        assert contents(store, "orders") == fresh_fold(store, prefix="order-")
        assert store.load_projection_checkpoint("orders").cursors == {"order-1": 3}
        self.counts.forget()
        runner.catch_up_persistent(Orders())
        assert self.counts.commits == []

    def test_a_long_search_for_a_prefix_is_several_commits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So the worker's lease is renewed, a stop is noticed, and a crash loses little of the search."""
        monkeypatch.setattr(batch, "SEARCHED", 40)
        now = NOW
        store = self.open(clock=lambda: now)
        store.append("other", [paid(1)] * 200)
        store.append("order-1", [paid(1)])
        lease = worker_lease.acquire(store.kv, "orders", "me", 30, store.now_ms)
        assert lease is not None
        positions: list[int] = []

        def stop() -> bool:
            nonlocal now
            now += 16  # more than half of the lease with each batch
            assert worker_lease.acquire(store.kv, "orders", "you", 30, store.now_ms) is None
            positions.append(store.lag("orders").position if positions else 0)
            return False

        runner = ProjectionRunner(store, batch=20)
        assert runner.catch_up_persistent(Orders(), lease=lease, stop=stop).handled == 1
        assert positions == [0, 40, 80, 120, 160, 200, 201]
        assert contents(store, "orders") == fresh_fold(store, prefix="order-")

    def test_two_projections_do_not_see_each_other(self) -> None:
        store = self.filled()
        runner = ProjectionRunner(store)
        named = [type("Named", (Turnover,), {"name": name})() for name in ("a", "a/b", "a%2Fb", "x" * 10_000)]
        for number, projection in enumerate(named):
            store.append("more", [paid(10**number)])
            runner.catch_up_persistent(projection)
        for number, projection in enumerate(named):
            assert contents(store, projection.name) == fresh_fold(store, 7 + number)
        for projection in named:
            runner.catch_up_persistent(projection)
            assert contents(store, projection.name) == fresh_fold(store)

    def test_interrupted(self) -> None:
        class Interrupted(Turnover):
            def handle(self, event: Event, view: View) -> None:
                super().handle(event, view)
                if event.position == 4:
                    raise KeyboardInterrupt

        store = self.filled()
        with pytest.raises(KeyboardInterrupt):
            ProjectionRunner(store).catch_up_persistent(Interrupted())
        ProjectionRunner(store).catch_up_persistent(Turnover())
        self.check(store)

    def test_several_at_the_same_time_apply_each_event_once(self) -> None:
        store = self.filled(streams=20, events=5)
        start = threading.Barrier(4)

        def work(_: int) -> int:
            runner = ProjectionRunner(store, batch=7)
            start.wait()
            return runner.catch_up_persistent(Turnover()).handled

        with ThreadPoolExecutor(4) as threads:
            handled = list(threads.map(work, range(4)))
        assert sum(handled) == 100
        self.check(store)

    def test_cursors_set_by_hand_are_honoured(self) -> None:
        store = self.filled(streams=3, events=4)
        store.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({"order-0": 4, "order-1": 2}))
        runner = ProjectionRunner(store)
        assert runner.catch_up_persistent(Turnover()).handled == 6
        assert contents(store)[b"total"] == b"%d" % (2 * 2 + 4 * 3)
        store.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({"order-0": 4, "order-1": 4}))
        assert runner.catch_up_persistent(Turnover()).handled == 4
        done = store.load_projection_checkpoint("turnover")
        assert done.cursors == {"order-0": 4, "order-1": 4, "order-2": 4}
        store.append("order-0", [paid(7)])
        further = done.copy()
        further.advance("order-0", 5)
        store.advance_projection_cursors("turnover", done, further)
        assert runner.catch_up_persistent(Turnover()).handled == 0

    def test_every_stream_is_looked_at_once_after_cursors_were_set(self) -> None:
        store = self.filled(streams=50, events=1)
        everything = GlobalProjectionCheckpoint({f"order-{number}": 1 for number in range(50)})
        for _ in range(2):
            store.save_projection_checkpoint("turnover", everything)
            runner = ProjectionRunner(store)
            assert (runner.catch_up_persistent(Turnover()).handled, contents(store)) == (0, {})
            self.counts.forget()
            assert runner.catch_up_persistent(Turnover()).position == 50
            assert (len(self.counts.reads), self.counts.keys_read) == (2, 1)

    def test_skipped_events_cost_reads_per_batch_not_per_event(self) -> None:
        store = self.filled(streams=60, events=4)
        store.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({f"order-{n}": 3 for n in range(60)}))
        self.counts.forget()
        assert ProjectionRunner(store, batch=100).catch_up_persistent(Turnover()).handled == 60
        assert len(self.counts.reads) < 30
        self.counts.forget()
        store.save_projection_checkpoint(
            "turnover", GlobalProjectionCheckpoint({f"order-{n}": 4 for n in range(1, 60)})
        )
        self.counts.forget()
        assert ProjectionRunner(store, batch=100).catch_up_persistent(Turnover()).handled == 4
        assert len(self.counts.reads) < 30

    def test_a_cursor_of_another_store(self) -> None:
        store = self.filled()
        store.save_projection_checkpoint("turnover", GlobalProjectionCheckpoint({"order-1": 9}))
        with pytest.raises(Invalid) as caught:
            ProjectionRunner(store).catch_up_persistent(Turnover())
        assert caught.value.code == "cursor.ahead"
        assert "'order-1'" in str(caught.value)
        assert contents(store) == {}

    def test_streams_that_were_left_out_before(self) -> None:
        store = self.filled()
        store.append("else", [paid(1)])
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Orders())
        everything = type("Everything", (Turnover,), {"name": "orders"})()
        store.append("else", [paid(1)])
        with pytest.raises(Invalid) as caught:
            runner.catch_up_persistent(everything)
        assert caught.value.code == "cursor.gap"
        runner.rebuild(everything)
        assert contents(store, "orders") == fresh_fold(store)

    def test_a_corrupt_cursor_stops_and_a_rebuild_mends_it(self) -> None:
        store = self.filled()
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Turnover())
        self.plant(store, "cursors", b"turnover/order-1", b"short")
        store.append("order-1", [paid(5)])
        with pytest.raises(Corrupt, match="order-1"):
            runner.catch_up_persistent(Turnover())
        runner.rebuild(Turnover())
        self.check(store)

    def test_a_volatile_read_model(self) -> None:
        class Volatile(Turnover):
            is_volatile = True

        store = self.filled()
        runner = ProjectionRunner(store)
        if self.abilities.persistent:
            for call in (runner.catch_up_persistent, runner.rebuild):
                with pytest.raises(Invalid) as caught:
                    call(Volatile())
                assert caught.value.code == "projection.volatile"
            assert self.counts.commits == []
        else:
            assert runner.catch_up_persistent(Volatile()).handled == 6

    @pytest.mark.parametrize(
        "projection", [object(), type("P", (), {"name": "p", "version": 1})(), type("P", (Turnover,), {"name": ""})(),
                       type("P", (Turnover,), {"version": -1})(), type("P", (Turnover,), {"version": "1"})()]
    )  # fmt: skip
    def test_what_is_no_projection(self, projection: Any) -> None:
        with pytest.raises(Invalid):
            ProjectionRunner(self.open()).catch_up_persistent(projection)
