"""Handlers that fail: stopped at, tried again, or put aside as dead letters."""

from __future__ import annotations

import pytest

from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.projections import Append, Event, NewEvent, OnError, ProjectionRunner, View
from holdfast.testing.conformance.projections.subject import Boom, FilledUnderTest, Turnover, contents, fresh_fold, paid


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


class HandlerErrorConformance(FilledUnderTest):
    """`OnError`, `dead_letters`, `retry_dead_letters`."""

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
