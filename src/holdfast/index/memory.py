"""In this process's memory: for tests, and for results that may be computed again."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

from holdfast.errors import Conflict
from holdfast.storage.kv.backend import Changes, Space

_open_names: set[str] = set()
_names_lock = threading.Lock()


class MemoryBackend:
    """A map that is gone when it is closed. A name is taken as long as its map is open."""

    is_persistent = False

    def __init__(self, name: str = "") -> None:
        self.address = f"memory://{name}"
        self._name = name
        if name:
            with _names_lock:
                if name in _open_names:
                    raise Conflict(
                        f"{self.address} is open in this process already.",
                        code="index.in-use",
                        about=self.address,
                        unchanged="the index",
                        next_step="close the other one first, or use another name",
                    )
                _open_names.add(name)
        self._lock = threading.Lock()
        self._values: dict[Space, dict[bytes, bytes]] = {"meta": {}, "results": {}}
        self._sorted: dict[Space, list[bytes]] = {}
        self._written: dict[Space, dict[bytes, bytes | None]] = {"meta": {}, "results": {}}

    def read(self, space: Space, key: bytes) -> bytes | None:
        with self._lock:
            return self._values[space].get(key)

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            values = self._values[space]
            if space not in self._sorted:
                self._sorted[space] = sorted(values)
            keys = self._sorted[space]
            start = end = bisect_left(keys, prefix)
            while end < len(keys) and keys[end].startswith(prefix):
                end += 1
            return iter([(key, values[key]) for key in keys[start:end]])

    def write(self, changes: Changes) -> None:
        for space, of_space in changes.items():
            self._written[space].update(of_space)

    def commit(self) -> None:
        with self._lock:
            try:
                self._apply()
            except BaseException:
                self._apply()  # a signal came in the middle: as a whole, then, which is fine to do twice
                raise
            self.rollback()

    def rollback(self) -> None:
        for changes in self._written.values():
            changes.clear()

    def close(self) -> None:
        self.rollback()
        with _names_lock:
            _open_names.discard(self._name)
        self._name = ""

    def _apply(self) -> None:
        for space, changes in self._written.items():
            values = self._values[space]
            for key, value in changes.items():
                if (key in values) is (value is None):
                    self._sorted.pop(space, None)
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
