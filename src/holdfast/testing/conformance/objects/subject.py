"""The object store under test."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.storage.objects.store import ObjectStore
from holdfast.testing.conformance.checkpoints.subject import READ_LIMIT, Abilities

T = TypeVar("T")
MIB = 1 << 20
RIVALS = 8


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
