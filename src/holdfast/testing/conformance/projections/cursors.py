"""Projection checkpoints: load, save, advance, and the exact keys that they write."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import Conflict, Corrupt, Fenced, Invalid
from holdfast.projections import GlobalProjectionCheckpoint
from holdfast.testing.conformance.projections.subject import ProjectionsUnderTest, paid

AWKWARD = ["a", "a/b", "a%2Fb", "a%", "/", "a\0", "😀", "x" * 10_000, "a/b/c"]
Cursors = GlobalProjectionCheckpoint


class CursorConformance(ProjectionsUnderTest):
    """`load_projection_checkpoint`, `save_projection_checkpoint`, `advance_projection_cursors`."""

    def test_missing_is_empty(self) -> None:
        found = self.open().load_projection_checkpoint("turnover")
        assert found.cursors == {}
        assert found.cursor_for("a") == 0

    def test_round_trip(self) -> None:
        store = self.open()
        checkpoint = Cursors({"order-1": 7, "order-2": 2**64 - 1, "order-3": 1})
        store.save_projection_checkpoint("turnover", checkpoint)
        assert store.load_projection_checkpoint("turnover") == checkpoint
        assert self.reopened(store).load_projection_checkpoint("turnover").cursors == checkpoint.cursors

    def test_save_really_overwrites(self) -> None:
        store = self.open()
        store.save_projection_checkpoint("p", Cursors({"a": 5, "b": 6, "c": 7}))
        self.counts.forget()
        store.save_projection_checkpoint("p", Cursors({"a": 2, "c": 7, "d": 1}))
        assert self.reopened(store).load_projection_checkpoint("p").cursors == {"a": 2, "c": 7, "d": 1}
        assert len(self.counts.commits) <= 1

    def test_empty_is_fine(self) -> None:
        store = self.open()
        store.save_projection_checkpoint("p", Cursors())
        store.advance_projection_cursors("p", Cursors(), Cursors())
        store.save_projection_checkpoint("p", Cursors({"a": 5, "b": 0}))
        assert store.load_projection_checkpoint("p").cursors == {"a": 5}
        store.save_projection_checkpoint("p", Cursors({}))
        assert self.reopened(store).load_projection_checkpoint("p").cursors == {}

    def test_advance_writes_exactly_what_advanced_in_one_commit(self) -> None:
        store = self.open()
        before = Cursors({f"order-{number}": 1 for number in range(500)})
        store.save_projection_checkpoint("p", before)
        after = before.copy()
        for number in (3, 77, 499):
            after.advance(f"order-{number}", 9)
        after.advance("new", 4)
        self.counts.forget()
        assert store.advance_projection_cursors("p", before, after) == 4
        moved = {b"order-3": 9, b"order-77": 9, b"order-499": 9, b"new": 4}
        assert self.counts.commits == [
            {"cursors": {b"p/" + stream: struct.pack("<Q", cursor) for stream, cursor in moved.items()}}
        ]
        assert self.counts.keys_read <= 5
        assert self.reopened(store).load_projection_checkpoint("p") == after

    def test_nothing_advanced_is_nothing_written(self) -> None:
        store = self.open()
        store.save_projection_checkpoint("p", Cursors({"a": 5}))
        self.counts.forget()
        assert store.advance_projection_cursors("p", Cursors({"a": 5}), Cursors({"a": 5})) == 0
        assert store.advance_projection_cursors("p", Cursors({"a": 5}), Cursors({})) == 0
        assert self.counts.commits == []
        assert store.load_projection_checkpoint("p").cursors == {"a": 5}

    def test_never_backwards(self) -> None:
        """A slow worker that read the cursors before another one advanced them."""
        store = self.open()
        store.save_projection_checkpoint("p", Cursors({"a": 10, "b": 1}))
        self.counts.forget()
        assert store.advance_projection_cursors("p", Cursors({"a": 3}), Cursors({"a": 7, "b": 4})) == 1
        assert self.counts.written("cursors") == [(b"p/b", struct.pack("<Q", 4))]
        assert store.load_projection_checkpoint("p").cursors == {"a": 10, "b": 4}

    def test_two_that_advance_at_the_same_time(self) -> None:
        store = self.open()
        start = threading.Barrier(4)

        def advance(worker: int) -> None:
            start.wait()
            for number in range(5):
                store.advance_projection_cursors("p", Cursors(), Cursors({"a": number * 4 + worker, "b": number}))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(advance, range(4)))
        assert store.load_projection_checkpoint("p").cursors == {"a": 19, "b": 4}

    def test_the_same_object_twice(self) -> None:
        store = self.open()
        both = Cursors({"a": 1})
        both.advance("a", 2)
        with pytest.raises(Invalid, match="copy"):
            store.advance_projection_cursors("p", both, both)

    def test_names_of_projections_never_meet(self) -> None:
        store = self.open()
        for at, name in enumerate(AWKWARD):
            store.save_projection_checkpoint(name, Cursors(dict.fromkeys((*AWKWARD, "s", "b/s"), at + 1)))
        store = self.reopened(store)
        for at, name in enumerate(AWKWARD):
            expected = dict.fromkeys((*AWKWARD, "s", "b/s"), at + 1)
            assert store.load_projection_checkpoint(name).cursors == expected
        assert [found.name for found in store.projections()] == sorted(AWKWARD)
        store.save_projection_checkpoint("a", Cursors())
        assert store.load_projection_checkpoint("a/b").cursors["s"] == 2
        assert store.load_projection_checkpoint("a").cursors == {}

    @pytest.mark.parametrize("name", ["", None, b"a", "\ud800", "x" * 20_001, "/" * 10_000])
    def test_bad_names(self, name: Any) -> None:
        store = self.open()
        for call in (
            lambda: store.load_projection_checkpoint(name),
            lambda: store.save_projection_checkpoint(name, Cursors()),
            lambda: store.advance_projection_cursors(name, Cursors(), Cursors({"a": 1})),
        ):
            with pytest.raises(Invalid):
                call()

    @pytest.mark.parametrize(
        "cursors", [{"a": -1}, {"a": 2**64}, {"": 1}, {"a": "1"}, {"a": True}, {1: 1}, {"\ud800": 1}]
    )
    def test_bad_cursors(self, cursors: Any) -> None:
        store = self.open()
        store.save_projection_checkpoint("p", Cursors({"b": 1}))
        with pytest.raises(Invalid):
            store.save_projection_checkpoint("p", Cursors(cursors))
        with pytest.raises(Invalid):
            store.advance_projection_cursors("p", Cursors(), Cursors({"b": 2, **cursors}))
        with pytest.raises(Invalid):
            store.save_projection_checkpoint("p", {"a": 1})  # type: ignore[arg-type]
        assert store.load_projection_checkpoint("p").cursors == {"b": 1}

    @pytest.mark.parametrize("value", [b"", b"1234567", b"123456789"])
    def test_a_corrupt_cursor(self, value: bytes) -> None:
        store = self.open()
        store.save_projection_checkpoint("p", Cursors({"a": 1, "b": 2}))
        self.plant(store, "cursors", b"p/a", value)
        for call in (
            lambda: store.load_projection_checkpoint("p"),
            lambda: store.advance_projection_cursors("p", Cursors(), Cursors({"a": 9})),
        ):
            with pytest.raises(Corrupt) as caught:
                call()
            assert caught.value.code == "cursor.damaged"
            assert "'p'" in str(caught.value)
            assert "'a'" in str(caught.value)
        store.save_projection_checkpoint("p", Cursors({"a": 1}))  # saving repairs it
        assert store.load_projection_checkpoint("p").cursors == {"a": 1}

    def test_a_fenced_writer_reports_nothing_saved(self) -> None:
        first = self.open()
        first.save_projection_checkpoint("p", Cursors({"a": 1}))
        if self.abilities.second_opening == "refused":
            with pytest.raises(Conflict):
                self.open()
            return
        second = self.open()
        if self.abilities.second_opening == "fences":
            with pytest.raises(Fenced):
                first.advance_projection_cursors("p", Cursors(), Cursors({"a": 5}))
            assert second.load_projection_checkpoint("p").cursors == {"a": 1}
        else:
            first.advance_projection_cursors("p", Cursors(), Cursors({"a": 5}))
            assert second.load_projection_checkpoint("p").cursors == {"a": 5}

    def test_checkpoints_do_not_touch_events(self) -> None:
        store = self.open()
        store.append("a", [paid(1)])
        store.save_projection_checkpoint("p", Cursors({"a": 9}))
        assert [event.sequence for event in store.read_all()] == [1]
