"""The event store: versions, positions, conflicts, reading, and refused arguments."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import Conflict, Corrupt, Fenced, Invalid
from holdfast.projections import Append, NewEvent, ProjectionStore, keys
from holdfast.testing.conformance.projections.subject import NOW, ProjectionsUnderTest, paid

NAMES = ["a", "a/b", "a%2Fb", "a/", "/", "%", "\0", "a\0b", "😀", "x" * 10_000, "😀" * 10_000, " ", "..", "\n"]


def sequences(store: ProjectionStore, stream: str) -> list[int]:
    return [event.sequence for event in store.read_stream(stream)]


class EventConformance(ProjectionsUnderTest):
    """`append`, `read_stream`, `fold`, `read_all`, `list_streams`, `stream_version`, `position`."""

    def test_empty(self) -> None:
        store = self.open()
        assert (store.position, store.stream_version("a"), store.list_streams()) == (0, 0, [])
        assert list(store.read_all()) == list(store.read_stream("a")) == []

    def test_envelopes(self) -> None:
        store = self.open()
        new = NewEvent("paid", {"cents": 5, "é": [None, 1.5]}, 3, "corr", "cause", 17, "my-id")
        given = store.append("order-1", [new, NewEvent("raw", b"\x00\xff"), NewEvent("empty")], expected="none")
        for found in (given, list(self.reopened(store).read_stream("order-1"))):
            first, raw, empty = found
            assert (first.position, first.stream, first.sequence, first.event_id) == (1, "order-1", 1, "my-id")
            assert (first.type, first.schema_version, first.time_ms) == ("paid", 3, 17)
            assert (first.correlation_id, first.causation_id) == ("corr", "cause")
            assert first.json() == {"cents": 5, "é": [None, 1.5]}
            assert (raw.payload, raw.is_json, raw.event_id, raw.time_ms) == (
                b"\x00\xff",
                False,
                "id-1",
                int(NOW * 1000),
            )
            assert (empty.json(), empty.sequence, empty.correlation_id) == (None, 3, None)

    def test_sequences_per_stream_and_one_position_for_all(self) -> None:
        store = self.open()
        for stream in ("a", "b", "a", "a", "b"):
            store.append(stream, [paid(1), paid(2)])
        store = self.reopened(store)
        assert [(e.position, e.stream, e.sequence) for e in store.read_all()] == [
            (1, "a", 1), (2, "a", 2), (3, "b", 1), (4, "b", 2), (5, "a", 3),
            (6, "a", 4), (7, "a", 5), (8, "a", 6), (9, "b", 3), (10, "b", 4),
        ]  # fmt: skip
        assert [e.position for e in store.read_all(7)] == [8, 9, 10]
        assert [e.sequence for e in store.read_stream("a", 4)] == [5, 6]
        assert list(store.read_stream("a", 6)) == list(store.read_stream("a", 2**64 - 1)) == []
        assert (store.stream_version("a"), store.stream_version("b"), store.position) == (6, 4, 10)
        assert store.fold("a", 0, lambda total, event: total + event.json()["cents"]) == 9
        assert store.fold("a", 0, lambda total, event: total + event.json()["cents"], after=4) == 3

    def test_expected_versions(self) -> None:
        store = self.open()
        store.append("a", [paid(1)], expected="none")
        store.append("a", [paid(2)], expected=1)
        store.append("a", [paid(3)], expected="any")
        store.append("b", [paid(3)], expected=0)
        for expected, code in (("none", "stream.version"), (0, "stream.version"), (2, "stream.version"),
                               (4, "stream.version-ahead"), (2**64 - 1, "stream.version-ahead")):  # fmt: skip
            with pytest.raises(Conflict) as caught:
                store.append("a", [paid(9)], expected=expected)  # type: ignore[arg-type]
            assert caught.value.code == code
            assert "'a'" in str(caught.value)
            assert "3" in str(caught.value)
        assert sequences(store, "a") == [1, 2, 3]
        assert store.position == 4

    def test_many_streams_in_one_step(self) -> None:
        store = self.open()
        store.append("b", [paid(1)])
        with pytest.raises(Conflict):
            store.append_many([Append("a", [paid(1)]), Append("b", [paid(1)], "none")])
        assert (store.position, store.stream_version("a")) == (1, 0)
        self.counts.forget()
        store.append_many([Append("a", [paid(1)], "none"), Append("a", [paid(2)], 1), Append("b", [paid(3)], 1)])
        assert len(self.counts.commits) == 1
        assert sequences(store, "a") == sequences(store, "b") == [1, 2]
        assert store.append_many([]) == store.append("a", [], expected=2) == []
        with pytest.raises(Conflict):
            store.append("a", [], expected=1)
        assert store.list_streams() == ["a", "b"]

    def test_one_of_several_writers_wins_and_the_others_can_retry(self) -> None:
        store = self.open()
        start = threading.Barrier(8)

        def write(number: int) -> int:
            start.wait()
            tries = 0
            while True:
                tries += 1
                try:
                    store.append("a", [paid(number)], expected=store.stream_version("a"))
                except Conflict:
                    continue
                return tries

        with ThreadPoolExecutor(8) as threads:
            tries = list(threads.map(write, range(8)))
        store = self.reopened(store)
        assert sequences(store, "a") == [event.position for event in store.read_all()] == list(range(1, 9))
        assert sorted(event.json()["cents"] for event in store.read_all()) == list(range(8))
        assert sum(tries) >= 8

    def test_a_second_opening(self) -> None:
        first = self.open()
        first.append("a", [paid(1)])
        if self.abilities.second_opening == "refused":
            with pytest.raises(Conflict) as caught:
                self.open()
            assert caught.value.code == "store.in-use"
            first.append("a", [paid(2)], expected=1)
            return
        second = self.open()
        second.append("a", [paid(2)], expected=1)
        if self.abilities.second_opening == "fences":
            with pytest.raises(Fenced):
                first.append("a", [paid(3)])
            with pytest.raises(Fenced):
                first.append("a", [paid(3)])
        else:
            first.append("a", [paid(3)], expected=2)
            assert sequences(first, "a") == [1, 2, 3]
        second.append("b", [paid(4)])
        assert sequences(second, "b") == [1]

    def test_streams_in_pages(self) -> None:
        store = self.open()
        names = [f"order-{number:03}" for number in range(25)] + ["order", "ordex", "é", "😀"]
        store.append_many([Append(name, [paid(1)]) for name in names])
        everything = sorted(names, key=str.encode)
        assert store.list_streams() == everything
        pages, after = [], None
        while page := store.list_streams("order-", after=after, limit=10):
            pages.append(page)
            after = page[-1]
        assert [len(page) for page in pages] == [10, 10, 5]
        assert [name for page in pages for name in page] == names[:25]
        assert store.list_streams("order") == everything[:26]
        assert store.list_streams("😀") == ["😀"]
        assert store.list_streams("nothing") == []
        assert store.list_streams("order-", after="zzz") == []

    def test_more_than_a_page_of_events(self) -> None:
        store = self.open()
        store.append("a", [paid(number) for number in range(2_500)])
        store.append("b", [paid(1)])
        assert sequences(store, "a") == list(range(1, 2_501))
        assert [event.position for event in store.read_all()] == list(range(1, 2_502))

    def test_names_of_streams_never_meet(self) -> None:
        store = self.open()
        store.append_many([Append(name, [NewEvent("named", name[:5])] * 2, "none") for name in NAMES])
        store = self.reopened(store)
        for name in NAMES:
            assert [(e.stream, e.sequence, e.json()) for e in store.read_stream(name)] == [
                (name, 1, name[:5]),
                (name, 2, name[:5]),
            ]
        assert store.list_streams() == sorted(NAMES, key=str.encode)
        assert store.list_streams("a/") == ["a/", "a/b"]

    @pytest.mark.parametrize(
        "stream",
        ["", None, b"a", 1, "\ud800", "x" * 40_001],
        ids=["empty", "None", "bytes", "int", "surrogate", "long"],
    )
    def test_bad_stream_names(self, stream: Any) -> None:
        store = self.open()
        for call in (lambda: store.append(stream, [paid(1)]), lambda: store.stream_version(stream),
                     lambda: list(store.read_stream(stream))):  # fmt: skip
            with pytest.raises(Invalid):
                call()
        assert store.position == 0

    @pytest.mark.parametrize(
        "event",
        [
            NewEvent(""),
            NewEvent("\ud800"),
            NewEvent("t", object()),
            NewEvent("t", {1: {2, object()}}),
            NewEvent("t", schema_version=-1),
            NewEvent("t", schema_version=True),
            NewEvent("t", time_ms=-1),
            NewEvent("t", correlation_id=""),
            NewEvent("t", causation_id=5),  # type: ignore[arg-type]
            {"type": "t"},
        ],
    )
    def test_bad_events(self, event: Any) -> None:
        store = self.open()
        with pytest.raises(Invalid):
            store.append("a", [paid(1), event])
        with pytest.raises(Invalid):
            store.append("a", event)
        assert (store.position, store.stream_version("a")) == (0, 0)

    @pytest.mark.parametrize("expected", [-1, True, 1.0, None, "none yet", 2**64])
    def test_bad_expectations(self, expected: Any) -> None:
        store = self.open()
        with pytest.raises(Invalid):
            store.append("a", [paid(1)], expected=expected)

    def test_payload_that_does_not_decode(self) -> None:
        store = self.open()
        raw, text = store.append("a", [NewEvent("raw", b"{"), NewEvent("paid", {"cents": "many"})])
        for event in (raw, text):
            with pytest.raises(Invalid) as caught:
                event.json(dict[str, int])
            assert caught.value.code == "event.payload"
            assert "'a'" in str(caught.value)

    def test_damage_is_found(self) -> None:
        """A damaged version is an error, not version 0: that would give two events the same number."""
        store = self.open()
        store.append("a", [paid(1), paid(2)])
        good = store.kv.get("heads", b"a")
        for damaged in (b"", b"x", (good or b"")[:-1] + b"\x00", store.kv.get("meta", keys.HEAD)):
            self.plant(store, "heads", b"a", damaged)
            with pytest.raises(Corrupt, match="stream"):
                store.append("a", [paid(3)])
            with pytest.raises(Corrupt):
                store.stream_version("a")
        self.plant(store, "heads", b"a", good)
        store.append("a", [paid(3)], expected=2)
        one, two = (keys.NUMBER.pack(position) for position in (1, 2))
        kept = store.kv.get_many("events", [one, two])
        for damaged in (kept[1], (kept[0] or b"")[:-6], None):
            self.plant(store, "events", one, damaged)
            with pytest.raises(Corrupt, match="event"):
                list(store.read_stream("a"))
            with pytest.raises(Corrupt):
                list(store.read_all())
        self.plant(store, "events", one, kept[0])
        assert [event.json()["cents"] for event in store.read_all()] == [1, 2, 3]

    def test_format(self) -> None:
        store = self.open()
        self.plant(store, "meta", keys.FORMAT, keys.seal(keys.FORMAT, 99))
        with pytest.raises(Invalid) as caught:
            ProjectionStore(self.counts.kv)
        assert caught.value.code == "store.newer"

    def test_closed(self) -> None:
        store = self.open()
        store.close()
        store.close()
        for call in (lambda: store.append("a", [paid(1)]), lambda: store.position):
            with pytest.raises(Invalid) as caught:
                call()
            assert caught.value.code == "store.closed"
