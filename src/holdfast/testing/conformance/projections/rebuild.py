"""Versions and rebuilds: a read model made again beside the live one, and the switch to it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.base.steps import observe
from holdfast.errors import Fenced, Invalid
from holdfast.projections import Event, ProjectionRunner, ReadModel, View
from holdfast.testing.conformance.projections.subject import (
    Boom,
    CaughtUpUnderTest,
    CountedStore,
    Doubled,
    Turnover,
    contents,
    fresh_fold,
    paid,
    spaces_left,
)


class RebuildConformance(CaughtUpUnderTest):
    """`rebuild`, and catching up with another version."""

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
