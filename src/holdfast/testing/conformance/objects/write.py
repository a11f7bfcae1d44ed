"""Writing: creating, updating, and what is durable when."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast.errors import Conflict, Invalid
from holdfast.storage.objects.store import ObjectStore
from holdfast.testing.conformance.objects.subject import MIB, RIVALS, MediumUnderTest


class ObjectWritingConformance(MediumUnderTest):
    """`create`, `update`, `secure`, `together`."""

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


def _adding(token: int) -> Callable[[bytes | None], bytes]:
    """A change as an object store may expect it: idempotent, and no two writers make the same body."""

    def change(current: bytes | None) -> bytes:
        tokens = {int(found) for found in (current or b"").split()} | {token}
        return b" ".join(b"%d" % found for found in sorted(tokens))

    return change
