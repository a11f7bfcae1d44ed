"""Looking at many objects: one by one where that is free, by a listing where each look is a request."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.storage.objects import CloudObjects, LocalObjects
from holdfast.storage.objects.infos import FEW, infos
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every look and every listing, in order."""
    found: list[str] = []
    for kind in (CloudObjects, LocalObjects):
        for name in ("info", "list"):
            real = getattr(kind, name)

            def noted(self: Any, key: str, *, real: Any = real, name: str = name) -> Any:
                found.append(f"{name} {key}")
                return real(self, key)

            monkeypatch.setattr(kind, name, noted)
    return found


def test_the_same_is_found_either_way(place: StoreUnderTest) -> None:
    keys = [f"{folder}/{number}" for folder in ("a", "nodes/1") for number in range(FEW)]
    for number, key in enumerate(keys):
        place.objects.create(key, [b"x" * number])
    place.objects.create("a/other", [b"x"])
    found = infos(place.objects, [*keys, "a/gone", "gone/1"])
    assert {key: info.size for key, info in found.items()} == {key: number for number, key in enumerate(keys)}
    assert infos(place.objects, keys[:2]).keys() == set(keys[:2])
    assert infos(place.objects, []) == {}


def test_many_objects_are_looked_at_by_a_listing_of_each_folder(memory: StoreUnderTest, asked: list[str]) -> None:
    infos(memory.objects, [f"a/{number}" for number in range(50)] + ["nodes/1/b", "nodes/2/b", "top"])
    assert asked == ["list ", "list a/", "list nodes/"]


def test_few_objects_are_looked_at_one_by_one(memory: StoreUnderTest, asked: list[str]) -> None:
    infos(memory.objects, [f"a/{number}" for number in range(FEW)])
    assert asked == [f"info a/{number}" for number in range(FEW)]


def test_on_a_disk_nothing_is_listed(local: StoreUnderTest, asked: list[str]) -> None:
    infos(local.objects, [f"a/{number}" for number in range(50)])
    assert len(asked) == 50
    assert not any(one.startswith("list") for one in asked)
