"""Reading: whole bodies, parts of them, and bounds on both."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.testing.conformance.objects.subject import MIB, MediumUnderTest


class ObjectReadingConformance(MediumUnderTest):
    """`read`, `stream`, `info`."""

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
