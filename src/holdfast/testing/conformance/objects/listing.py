"""Listing and deleting: what is there, what is left over, and what goes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import Conflict, NotFound
from holdfast.testing.conformance.objects.subject import MediumUnderTest


class ObjectListingConformance(MediumUnderTest):
    """`list`, `leftovers`, `delete`."""

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

    def test_delete_does_not_stop_at_an_absent_key(self) -> None:
        keys = [f"a/{number:02}" for number in range(30)]
        for key in keys:
            self.objects.create(key, [b"x"])
        self.objects.delete(["a/absent", *keys[:15], "a/nothing", *keys[15:]])
        assert self.open().list("") == []

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
