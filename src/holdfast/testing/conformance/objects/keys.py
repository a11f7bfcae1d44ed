"""Keys: which are taken, which are refused, and what an address shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.errors import Invalid
from holdfast.testing.conformance.objects.subject import MediumUnderTest

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


class ObjectKeysConformance(MediumUnderTest):
    """Every call that takes a key or a prefix; `address`."""

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

    def test_address_names_no_credentials(self) -> None:
        assert self.objects.address
        assert "secret" not in self.objects.address
