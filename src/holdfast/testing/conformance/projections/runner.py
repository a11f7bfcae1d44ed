"""Catching up: each event once, read model and cursors in one commit, and a cost that follows what changed."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import Corrupt, Invalid, NotFound, Unavailable
from holdfast.projections import (
    Append,
    Event,
    GlobalProjectionCheckpoint,
    MemoryView,
    NewEvent,
    OnError,
    Projection,
    ProjectionRunner,
    ProjectionStore,
    View,
)
from holdfast.testing.conformance.projections.subject import (
    Boom,
    ProjectionsUnderTest,
    Turnover,
    contents,
    fresh_fold,
    paid,
)


class Orders(Turnover):
    """Some streams only."""

    name = "orders"
    streams = "order-"


class Flaky(Turnover):
    """Fails a number of times at one event."""

    def __init__(self, at: int, times: int) -> None:
        self.at = at
        self.left = times

    def handle(self, event: Event, view: View) -> None:
        view.put(b"half", b"done")
        if event.position == self.at and self.left:
            self.left -= 1
            raise Boom("not now")
        view.delete(b"half")
        super().handle(event, view)


class Tables(Projection):
    """A read model in tables of its own."""

    name = "tables"

    def __init__(self, store: ProjectionStore) -> None:
        self._marker = "%s" if store.address.startswith("postgresql:") else "?"

    def handle(self, event: Event, view: View) -> None:
        table = view.table("by stream")
        view.execute(f"CREATE TABLE IF NOT EXISTS {table} (stream TEXT PRIMARY KEY, cents INTEGER, events INTEGER)")
        view.execute(
            f"INSERT INTO {table} AS old VALUES ({self._marker}, {self._marker}, 1) "
            "ON CONFLICT (stream) DO UPDATE SET cents = old.cents + excluded.cents, events = old.events + 1",
            (event.stream, event.json()["cents"] if event.json()["cents"] != "bad" else 0),
        )
        if event.json()["cents"] == "bad":
            raise Boom("bad amount")
        view.put(b"last", b"%d" % event.position)


def rows_of(store: ProjectionStore, name: str = "tables") -> dict[str, tuple[int, int]]:
    found = store.view(name).query(lambda table: f"SELECT stream, cents, events FROM {table('by stream')}")
    return {stream: (cents, events) for stream, cents, events in found}


class RunningConformance(ProjectionsUnderTest):
    """`ProjectionRunner`."""

    def filled(self, streams: int = 3, events: int = 2, **options: Any) -> ProjectionStore:
        store = self.open(**options)
        store.append_many([Append(f"order-{n}", [paid(n + 1)] * events) for n in range(streams)])
        self.counts.forget()
        return store

    def check(self, store: ProjectionStore, **about: Any) -> None:
        """The read model and the cursors are those of a fresh fold."""
        position = store.lag("turnover").position
        assert contents(store) == fresh_fold(store, position, **about)
        expected: dict[str, int] = {}
        for event in store.read_all():
            if event.position <= position:
                expected[event.stream] = event.sequence
        assert store.load_projection_checkpoint("turnover").cursors == expected

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

    def test_stop(self) -> None:
        """Everything before the event is committed, nothing of it, and it is met again until it can be handled."""
        store = self.open()
        store.append_many(
            [Append("a", [paid(1), paid(2)]), Append("b", [paid("bad"), paid(4)]), Append("c", [paid(5)])]
        )
        runner = ProjectionRunner(store)
        for _ in range(2):
            with pytest.raises(Invalid) as caught:
                runner.catch_up_persistent(Turnover())
            assert caught.value.code == "projection.handler"
            assert isinstance(caught.value.__cause__, Boom)
            assert "'b'" in str(caught.value)
            assert store.lag("turnover").position == 2
            assert contents(store) == fresh_fold(store, 2)
            assert store.load_projection_checkpoint("turnover").cursors == {"a": 2}
            assert store.dead_letters("turnover") == []
            store = self.reopened(store)
            runner = ProjectionRunner(store)

    def test_what_a_failing_handler_wrote_is_undone(self) -> None:
        store = self.filled()
        with pytest.raises(Invalid):
            ProjectionRunner(store).catch_up_persistent(Flaky(4, 1))
        assert b"half" not in contents(store)
        self.check(store)
        assert store.lag("turnover").position == 3
        ProjectionRunner(store).catch_up_persistent(Turnover())
        self.check(store)

    def test_retries(self) -> None:
        store = self.filled()
        waits: list[float] = []
        runner = ProjectionRunner(store, on_error=OnError(retries=3, wait=1.0), sleep=waits.append)
        runner.catch_up_persistent(Flaky(4, 3))
        assert waits == [1.0, 2.0, 4.0]
        self.check(store)
        store.append("z", [paid(1)])
        with pytest.raises(Invalid, match="4 times"):
            runner.catch_up_persistent(Flaky(7, 9))
        assert store.lag("turnover").position == 6
        self.check(store)

    def test_dead_letters(self) -> None:
        store = self.open()
        store.append_many([Append("a", [paid(1)]), Append("b", [paid("bad"), paid(4)]), Append("c", [paid("bad")])])
        waits: list[float] = []
        policy = OnError(retries=1, then="dead-letter", wait=0.5)
        runner = ProjectionRunner(store, on_error=policy, sleep=waits.append)
        self.counts.forget()
        done = runner.catch_up_persistent(Turnover())
        assert (done.handled, done.dead_lettered, done.position, waits) == (2, 2, 4, [0.5, 0.5])
        for commit in self.counts.commits:  # a letter and the cursor that passes it, always together
            put_aside = commit.get("letters", {})
            assert len(put_aside) in (0, 1)
            if put_aside:
                assert commit["cursors"]
                assert commit["meta"]
        store = self.reopened(store)
        assert contents(store) == fresh_fold(store)
        assert store.load_projection_checkpoint("turnover").cursors == {"a": 1, "b": 2, "c": 1}
        letters = store.dead_letters("turnover")
        assert [(x.position, x.stream, x.sequence, x.type, x.attempts) for x in letters] == [
            (2, "b", 1, "paid", 2),
            (4, "c", 1, "paid", 2),
        ]
        assert "bad amount" in letters[0].error
        runner = ProjectionRunner(store)
        assert runner.catch_up_persistent(Turnover()).handled == 0
        left = runner.retry_dead_letters(Turnover())
        assert [(letter.position, letter.attempts) for letter in left] == [(2, 3), (4, 3)]
        assert store.dead_letters("turnover") == left

        class Lenient(Turnover):
            def handle(self, event: Event, view: View) -> None:
                view.put(b"late/%d" % event.position, b"")
                if event.position == 2:  # somebody else catches up meanwhile
                    store.append("d", [paid(1)], expected="any")
                    ProjectionRunner(store).catch_up_persistent(Turnover(), batches=1 if self.is_first() else 0)

            def is_first(self) -> bool:
                first, self.was_here = not hasattr(self, "was_here"), True
                return first

        class Newer(Lenient):
            version = 2

        with pytest.raises(Invalid) as refused:
            runner.retry_dead_letters(Newer())
        assert refused.value.code == "projection.version"
        assert store.dead_letters("turnover") == left
        assert runner.retry_dead_letters(Lenient()) == []
        assert store.dead_letters("turnover") == []
        runner.catch_up_persistent(Turnover())
        assert contents(store) == fresh_fold(store) | {b"late/2": b"", b"late/4": b""}

    def test_trouble_of_the_store_is_nobodys_dead_letter(self) -> None:
        class Troubled(Turnover):
            def handle(self, event: Event, view: View) -> None:
                raise Unavailable("the disk is away")

        store = self.filled()
        with pytest.raises(Unavailable):
            ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Troubled())
        assert store.dead_letters("turnover") == []
        with pytest.raises(NotFound):
            store.lag("turnover")

    def test_unknown_types_and_payloads_stop_and_lose_nothing(self) -> None:
        store = self.filled()
        store.append("order-0", [NewEvent("surprise", b"\xff")])
        store.append("order-0", [paid(1)])
        with pytest.raises(Invalid, match="surprise"):
            ProjectionRunner(store).catch_up_persistent(Turnover())
        assert store.lag("turnover").events == 2
        done = ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Turnover())
        assert (done.handled, done.dead_lettered) == (1, 1)

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

    def test_replays(self) -> None:
        store = self.filled(streams=3, events=4)
        store.append("else", [paid(1000)])
        runner = ProjectionRunner(store)
        everything = fresh_fold(store)
        events = list(store.read_all())
        for view in (runner.run(Turnover(), events), runner.run_all([Turnover()], iter(events))):
            assert dict(view.scan()) == everything
        one = list(store.read_stream("order-2"))
        assert [key for key, _ in runner.catch_up(Turnover(), one, after=3).scan(b"seen")] == [b"seen/00000012"]
        view = MemoryView()
        assert runner.run_from_store(Turnover(), "order-2", view) == 4
        assert runner.catch_up_from_store(Turnover(), "order-2", 4, view) == 4
        assert view.get(b"total") == b"12"
        view = MemoryView()
        reached = runner.run_all_streams(Turnover(), view=view)
        assert view.values == everything
        assert reached.cursors == {"order-0": 4, "order-1": 4, "order-2": 4, "else": 1}
        store.append("order-1", [paid(5)])
        later = runner.catch_up_all_streams(Turnover(), reached, view=view)
        assert view.values == fresh_fold(store)
        assert (later.cursor_for("order-1"), reached.cursor_for("order-1")) == (5, 4)
        view = MemoryView()
        reached = runner.run_matching_streams(Turnover(), "order-", view)
        assert view.values == fresh_fold(store, prefix="order-")
        store.append("order-1", [paid(5)])
        runner.catch_up_matching_streams(Turnover(), "order-", reached, view)
        assert view.values == fresh_fold(store, prefix="order-")
        view = MemoryView()
        assert runner.run_all_streams(Turnover(), ["else", "nobody"], view).cursors == {"else": 1}
        assert view.get(b"total") == b"1000"

    def test_tables_of_ones_own(self) -> None:
        store = self.open()
        store.append_many([Append("a", [paid(1), paid(2)]), Append("b", [paid("bad"), paid(4)])])
        runner = ProjectionRunner(store)
        if not self.abilities.sql:
            with pytest.raises(Invalid, match="no SQL"):
                runner.catch_up_persistent(Tables(store))
            with pytest.raises(Invalid, match="no SQL"):
                rows_of(store)
            return
        with pytest.raises(Invalid):
            runner.catch_up_persistent(Tables(store))
        assert rows_of(store) == {"a": (3, 2)}
        assert (store.lag("tables").position, contents(store, "tables")) == (2, {b"last": b"2"})
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"))
        runner.catch_up_persistent(Tables(store))
        store = self.reopened(store)
        assert rows_of(store) == {"a": (3, 2), "b": (4, 1)}
        assert store.load_projection_checkpoint("tables").cursors == {"a": 2, "b": 2}
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"))
        store.append("a", [paid(10)])
        runner.rebuild(Tables(store))
        assert rows_of(store) == {"a": (13, 3), "b": (4, 1)}

    @pytest.mark.parametrize(
        "projection", [object(), type("P", (), {"name": "p", "version": 1})(), type("P", (Turnover,), {"name": ""})(),
                       type("P", (Turnover,), {"version": -1})(), type("P", (Turnover,), {"version": "1"})()]
    )  # fmt: skip
    def test_what_is_no_projection(self, projection: Any) -> None:
        with pytest.raises(Invalid):
            ProjectionRunner(self.open()).catch_up_persistent(projection)
