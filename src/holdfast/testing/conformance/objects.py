"""What every object store must do: keys to bytes, each write durable when it returns, one winner among many."""

from __future__ import annotations

import functools
import os
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from holdfast.errors import Conflict, Corrupt, Invalid, NotFound
from holdfast.storage.objects.store import ObjectStore
from holdfast.testing.conformance.checkpoints.subject import READ_LIMIT, Abilities

T = TypeVar("T")
MIB = 1 << 20
RIVALS = 8

REFUSED_KEYS = {
    "empty": "",
    "parent": "..",
    "climbs": "a/../../b",
    "climbs at once": "../a",
    "stays": "a/./b",
    "absolute": "/etc/passwd",
    "trailing slash": "a/",
    "empty part": "a//b",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "delete": "a\x7fb",
    "backslash": "a\\..\\b",
    "surrogate": "a\ud800",
    "10,000 characters": "a" * 10_000,
    "10,000 in parts": "abcdefgh/" * 1111 + "a",
    "long part": "ä" * 101,
}
ACCEPTED_KEYS = [
    "a",
    "a/b/c.json",
    "ä/ö",
    "a b",
    "a%2Fb",
    "a+b",
    "...",
    "a..b",
    "~a",
    "a:b",
    "x" * 200,
    "k/" * 100 + "k",
]


class MediumUnderTest:
    """One object store, opened as often as a test likes; every `open` is a new handle on the same place."""

    abilities: Abilities

    def open(self) -> ObjectStore:
        raise NotImplementedError

    @functools.cached_property
    def objects(self) -> ObjectStore:
        return self.open()

    def at_once(self, act: Callable[[ObjectStore, int], T]) -> list[T]:
        """`act` in several threads at the same time, each with a handle of its own."""
        handles = [self.open() for _ in range(RIVALS)]
        with ThreadPoolExecutor(RIVALS) as threads:
            return list(threads.map(act, handles, range(RIVALS)))

    def body(self, key: str) -> bytes:
        return self.open().read(key, limit=READ_LIMIT)


class ObjectsConformance(MediumUnderTest):
    """Every `ObjectStore`."""

    # Creating

    @pytest.mark.parametrize("chunks", [[b"body"], [], [b""], [b"a", b"", b"b"], [bytes(range(256)) * 3]], ids=len)
    def test_created_bytes_come_back_exactly(self, chunks: list[bytes]) -> None:
        self.objects.create("a/b", chunks)
        assert self.body("a/b") == b"".join(chunks)
        assert b"".join(self.open().stream("a/b")) == b"".join(chunks)
        info = self.open().info("a/b")
        assert info is not None
        assert (info.key, info.size) == ("a/b", len(b"".join(chunks)))

    def test_any_kind_of_bytes_is_taken(self) -> None:
        wide = memoryview(b"01234567").cast("I")
        self.objects.create("a", [b"one ", bytearray(b"two "), memoryview(b"three "), wide])
        assert self.body("a") == b"one two three 01234567"

    def test_large_body(self) -> None:
        chunks = [os.urandom(MIB) for _ in range(12)] + [b"the end"]
        self.objects.create("large", chunks)
        assert self.body("large") == b"".join(chunks)
        pieces = [bytes(piece) for piece in self.open().stream("large")]
        assert b"".join(pieces) == b"".join(chunks)
        assert len(pieces) > 1

    def test_second_create_conflicts_and_changes_nothing(self) -> None:
        self.objects.create("a", [b"first"])
        for handle in (self.objects, self.open()):
            for body in (b"second", b"first"):
                with pytest.raises(Conflict):
                    handle.create("a", [body])
        assert self.body("a") == b"first"

    def test_create_after_delete(self) -> None:
        self.objects.create("a", [b"first"])
        self.objects.delete(["a"])
        self.objects.create("a", [b"second"])
        assert self.body("a") == b"second"

    def test_of_many_creates_at_once_one_wins(self) -> None:
        def attempt(handle: ObjectStore, index: int) -> list[int]:
            won = []
            for number in range(10):
                try:
                    handle.create(f"race/{number}", [b"%d" % index, b"x" * 5000])
                except Conflict:
                    continue
                won.append(number)
            return won

        wins = self.at_once(attempt)
        assert sorted(number for won in wins for number in won) == list(range(10))
        for index, won in enumerate(wins):
            for number in won:
                assert self.body(f"race/{number}") == b"%d" % index + b"x" * 5000

    # Keys

    @pytest.mark.parametrize("name", REFUSED_KEYS)
    def test_refused_key(self, name: str) -> None:
        key = REFUSED_KEYS[name]
        calls: list[Callable[[], object]] = [
            lambda: self.objects.create(key, [b"x"]),
            lambda: self.objects.update(key, lambda _: b"x"),
            lambda: self.objects.read(key, limit=10),
            lambda: list(self.objects.stream(key)),
            lambda: self.objects.info(key),
        ]
        if not key.endswith("/"):  # that is how `leftovers` names a folder
            calls.append(lambda: self.objects.delete([key]))
        for call in calls:
            with pytest.raises(Invalid) as caught:
                call()
            assert len(str(caught.value)) < 1000
        assert self.open().list("") == []

    @pytest.mark.parametrize("prefix", ["../", "a/../../", "/", "a\x00/"])
    def test_refused_prefix(self, prefix: str) -> None:
        with pytest.raises(Invalid):
            self.objects.list(prefix)

    @pytest.mark.parametrize("key", ACCEPTED_KEYS, ids=lambda key: key[:10])
    def test_accepted_key(self, key: str) -> None:
        self.objects.create(key, [b"x"])
        assert self.body(key) == b"x"
        assert [info.key for info in self.open().list("")] == [key]
        assert self.objects.update(key, lambda _: b"y")
        self.objects.delete([key])
        assert self.open().list("") == []

    @pytest.mark.parametrize("key", [".x.tmp", "a/.manifest.json.abc.tmp", "manifest.json.tmp", "a/state.bin.tmp"])
    def test_what_can_be_created_is_listed(self, key: str) -> None:
        """A name that an object store reserves for itself is refused, never swallowed."""
        try:
            self.objects.create(key, [b"x"])
        except Invalid:
            return
        assert [info.key for info in self.open().list("")] == [key]

    # Updating

    def test_update_creates_replaces_and_declines(self) -> None:
        seen: list[bytes | None] = []

        def update(to: bytes | None) -> bool:
            def change(current: bytes | None) -> bytes | None:
                seen.append(current)
                return to

            return self.open().update("a/b", change)

        outcomes = []
        for to in (b"1", b"22", None, b"", None):
            outcomes.append((update(to), seen[-1]))
        assert outcomes == [(True, None), (True, b"1"), (False, b"22"), (True, b"22"), (False, b"")]
        assert self.body("a/b") == b""

    def test_declined_update_of_what_is_absent_leaves_nothing(self) -> None:
        assert self.objects.update("a/b/c", lambda _: None) is False
        assert self.open().list("") == []
        assert self.open().leftovers() == []

    def test_update_sees_what_others_wrote_meanwhile(self) -> None:
        first, second = self.open(), self.open()
        for handle, token in [(first, 0), (second, 1), (first, 2), (first, 3), (second, 4)]:
            assert handle.update("a", _adding(token))
        assert self.body("a") == b"0 1 2 3 4"
        second.delete(["a"])
        assert first.update("a", _adding(5))
        assert self.body("a") == b"5"

    def test_update_of_what_was_created_through_this_handle_and_changed_by_another(self) -> None:
        self.objects.create("a", [b"mine"])
        self.open().update("a", lambda _: b"theirs")
        self.objects.update("a", lambda current: (current or b"") + b"!")
        assert self.body("a") == b"theirs!"

    def test_error_in_the_change_changes_nothing(self) -> None:
        self.objects.create("a", [b"body"])

        def refuse(_: bytes | None) -> bytes | None:
            raise Invalid("no")

        for handle in (self.objects, self.open()):
            with pytest.raises(Invalid, match="no"):
                handle.update("a", refuse)
        assert self.body("a") == b"body"
        assert self.open().leftovers() == []

    def test_updates_at_once_are_atomic(self) -> None:
        def act(handle: ObjectStore, index: int) -> None:
            for turn in range(5):
                assert handle.update("set", _adding(index * 5 + turn))

        self.at_once(act)
        assert self.body("set") == b" ".join(b"%d" % token for token in range(5 * RIVALS))

    def test_reader_never_sees_part_of_an_update(self) -> None:
        bodies = [b"a" * 100_000, b"b" * 70_000]
        self.objects.create("a", [bodies[0]])

        def act(handle: ObjectStore, index: int) -> None:
            for turn in range(6):
                if index < 2:
                    handle.update("a", lambda _, turn=turn: bodies[(turn + index) % 2])  # type: ignore[misc]
                else:
                    assert handle.read("a", limit=MIB) in bodies

        self.at_once(act)

    # Durability on request

    def test_secure_changes_nothing_that_can_be_seen(self) -> None:
        self.objects.create("a/b", [b"body"])
        before = self.open().list("")
        self.open().secure(["a/b", "a/absent", "nowhere/at/all"])
        self.open().secure([])
        assert self.open().list("") == before
        assert self.body("a/b") == b"body"
        assert self.open().leftovers() == []

    def test_written_together_is_visible_in_order_and_afterwards(self) -> None:
        with self.objects.together():
            self.objects.create("a/1", [b"one"])
            assert self.body("a/1") == b"one"
            self.objects.update("b/2", lambda _: b"two")
            with pytest.raises(Conflict):
                self.objects.create("a/1", [b"again"])
        self.objects.create("c/3", [b"three"])
        assert [self.body(key) for key in ("a/1", "b/2", "c/3")] == [b"one", b"two", b"three"]
        assert self.open().leftovers() == []

    def test_error_among_what_is_written_together_comes_out(self) -> None:
        def write() -> None:
            with self.objects.together():
                self.objects.create("a", [b"one"])
                raise Invalid("in the middle")

        with pytest.raises(Invalid, match="in the middle"):
            write()
        assert self.body("a") == b"one"
        self.objects.create("b", [b"two"])
        assert self.body("b") == b"two"

    # Reading

    def test_absent(self) -> None:
        calls: list[Callable[[], object]] = [
            lambda: self.objects.read("a/b", limit=10),
            lambda: b"".join(self.objects.stream("a/b")),
            lambda: b"".join(self.objects.stream("a/b", start=3, length=2)),
        ]
        for call in calls:
            with pytest.raises(NotFound) as caught:
                call()
            assert "a/b" in str(caught.value)
        assert self.objects.info("a/b") is None

    def test_limit(self) -> None:
        self.objects.create("a", [b"12345"])
        assert self.objects.read("a", limit=5) == b"12345"
        for limit in (4, 0):
            with pytest.raises(Corrupt) as caught:
                self.open().read("a", limit=limit)
            assert "a" in str(caught.value)
        self.objects.create("empty", [])
        assert self.objects.read("empty", limit=0) == b""

    def test_what_is_above_the_limit_is_not_read(self) -> None:
        self.objects.create("large", [b"x" * (16 * MIB)])
        handle = self.open()
        tracemalloc.start()
        try:
            with pytest.raises(Corrupt):
                handle.read("large", limit=15 * MIB)
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()

    def test_stream_of_a_part(self) -> None:
        body = bytes(range(256)) * 64
        self.objects.create("a", [body])
        for start, length in [(0, 10), (5, 1), (100, None), (0, None), (len(body) - 1, 1), (7, 0)]:
            end = None if length is None else start + length
            assert b"".join(self.open().stream("a", start=start, length=length)) == body[start:end]

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(3, 100, b"45"), (5, None, b""), (5, 1, b""), (6, None, b""), (1000, 5, b""), (2**62, 2**62, b"")],
    )
    def test_stream_ends_where_the_body_ends(self, start: int, length: int | None, expected: bytes) -> None:
        self.objects.create("a", [b"12345"])
        assert b"".join(self.open().stream("a", start=start, length=length)) == expected

    def test_stream_of_what_no_body_can_have(self) -> None:
        """Such numbers come from damaged manifests: the object store is not to blame for them."""
        self.objects.create("a", [b"12345"])
        try:
            assert b"".join(self.open().stream("a", start=10**30, length=10**31)) == b""
        except (Corrupt, Invalid):
            return

    def test_stream_is_bounded(self) -> None:
        self.objects.create("large", [b"x" * (24 * MIB)])
        handle, largest = self.open(), 0
        for piece in handle.stream("large"):
            largest = max(largest, len(piece))
        assert 0 < largest <= 8 * MIB

    # Listing

    def test_empty(self) -> None:
        assert self.objects.list("") == []
        assert self.objects.list("a/") == []
        assert self.objects.leftovers() == []

    def test_list_is_sorted_and_tells_size_and_age(self) -> None:
        for key in ("b", "a/2", "a/10", "a/1/x", "c/y"):
            self.objects.create(key, [key.encode()])
        found = self.open().list("")
        assert [info.key for info in found] == ["a/1/x", "a/10", "a/2", "b", "c/y"]
        assert [info.size for info in found] == [5, 4, 3, 1, 3]
        assert all(abs(info.modified - time.time()) < 600 for info in found)

    def test_prefix_is_a_folder(self) -> None:
        for key in ("a/1", "a/b/2", "ab/3", "a.b"):
            self.objects.create(key, [b""])
        assert [info.key for info in self.open().list("a/")] == ["a/1", "a/b/2"]
        assert [info.key for info in self.open().list("a/b/")] == ["a/b/2"]
        assert [info.key for info in self.open().list("ab/")] == ["ab/3"]
        assert self.open().list("b/") == []

    def test_more_than_one_page(self) -> None:
        keys = [f"many/{number:04}" for number in range(1100)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: self.quick_create(key), keys))
        assert [info.key for info in self.open().list("many/")] == keys
        self.open().delete(keys)
        assert self.open().list("") == []

    def quick_create(self, key: str) -> None:
        """Make an object for a listing; an object store with slow writes may go round them."""
        self.objects.create(key, [b"x"])

    # Deleting

    def test_delete_is_exact_and_does_not_mind_absent_keys(self) -> None:
        for key in ("a/1", "a/2", "ab/1"):
            self.objects.create(key, [b"x"])
        self.objects.delete(["a/1", "a/nothing", "nowhere/at/all"])
        assert [info.key for info in self.open().list("")] == ["a/2", "ab/1"]
        self.objects.delete([])
        self.objects.delete(["a/2"], then=["ab/1", "gone"])
        assert self.open().list("") == []
        assert self.open().leftovers() == []

    def test_deleted_is_gone_for_every_handle(self) -> None:
        other = self.open()
        self.objects.create("a", [b"x"])
        assert other.read("a", limit=1) == b"x"
        self.objects.delete(["a"])
        assert other.info("a") is None
        with pytest.raises(NotFound):
            other.read("a", limit=1)

    def test_failed_create_leaves_nothing(self) -> None:
        self.objects.create("a/b", [b"x"])
        with pytest.raises(Conflict):
            self.objects.create("a/b", [b"y"])
        assert self.open().leftovers() == []

    def test_leftovers_are_shown_by_no_listing_and_can_be_deleted(self) -> None:
        self.objects.create("a/b", [b"x"])
        if not self.abilities.leftovers:
            assert self.objects.leftovers() == []
            return
        self.plant_leftover()
        assert [info.key for info in self.open().list("")] == ["a/b"]
        found = [info.key for info in self.open().leftovers()]
        assert found
        assert [info.key for info in self.open().leftovers("a/")] + [
            info.key for info in self.open().leftovers("c/")
        ] == sorted(found)
        self.open().delete(found)
        assert self.open().leftovers() == []
        assert [info.key for info in self.open().list("")] == ["a/b"]

    def plant_leftover(self) -> None:
        """Leave below `a/` or `c/` what an interrupted write leaves. Only called for stores with that ability."""
        raise NotImplementedError

    def test_address_names_no_credentials(self) -> None:
        assert self.objects.address
        assert "secret" not in self.objects.address


def _adding(token: int) -> Callable[[bytes | None], bytes]:
    """A change as an object store may expect it: idempotent, and no two writers make the same body."""

    def change(current: bytes | None) -> bytes:
        tokens = {int(found) for found in (current or b"").split()} | {token}
        return b" ".join(b"%d" % found for found in sorted(tokens))

    return change
