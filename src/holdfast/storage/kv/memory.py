"""A store in this process's memory: for tests, and for data that can be computed again."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from holdfast.storage.kv import errors
from holdfast.storage.kv.store import Kind, Mode, Row, Schema, WriteBatch, Writers
from holdfast.storage.kv.transaction import BufferedTransaction, Turn

_shared: dict[tuple[Kind, str], tuple[_Maps, int]] = {}
"""The named maps that are open, each with the number of its openings."""
_shared_lock = threading.Lock()
_FEW = 64


class _Maps:
    """The data, shared by all openings of one name."""

    def __init__(self, schema: Schema) -> None:
        self.turn = Turn()
        self._lock = threading.Lock()
        self._values: dict[str, dict[bytes, bytes]] = {space: {} for space in schema.names}
        self._sorted: dict[str, list[bytes]] = {}
        """The sorted keys of a space; missing if they have to be sorted again."""

    def get(self, space: str, key: bytes) -> bytes | None:
        with self._lock:
            return self._values[space].get(key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return list(map(self._values[space].get, keys))

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None) -> list[Row]:
        with self._lock:
            values = self._values[space]
            keys = self._sorted.get(space)
            if keys is None:
                keys = self._sorted[space] = sorted(values)
            first = bisect_left(keys, start)
            last = len(keys) if end is None else bisect_left(keys, end)
            if limit is not None:
                last = min(last, first + limit)
            return [(key, values[key]) for key in keys[first:last]]

    def apply(self, batch: WriteBatch) -> None:
        with self._lock:
            try:
                self._apply(batch)
            except BaseException:
                self._apply(batch)  # a signal came in the middle: apply the whole batch again, which is idempotent
                raise

    def _apply(self, batch: WriteBatch) -> None:
        for space, changes in batch.items():
            values = self._values[space]
            new = [key for key, value in changes.items() if value is not None and key not in values]
            gone = {key for key, value in changes.items() if value is None and key in values}
            keys = self._sorted.pop(space, None) if new or gone else None
            values.update((key, value) for key, value in changes.items() if value is not None)
            for key in gone:
                values.pop(key, None)
            if keys is None or len(new) > _FEW:
                continue
            if gone:
                keys = [key for key in keys if key not in gone]
            for key in new:
                insort(keys, key)
            self._sorted[space] = keys


class MemoryReader:
    """Reads the data that another opening of this name in this process has committed. `NotFound` if there is none."""

    is_persistent = False

    def __init__(self, name: str, schema: Schema) -> None:
        self.address = f"memory://{name}"
        self.kind = schema.kind
        self._name = ""
        self._is_closed = False
        self._maps = self._opened(name, schema)
        self.turn = self._maps.turn

    def get(self, space: str, key: bytes) -> bytes | None:
        self.check_open()
        return self._maps.get(space, key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self.check_open()
        return self._maps.get_many(space, keys)

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        self.check_open()
        return iter(self._maps.scan(space, start, end, limit))

    def close(self) -> None:
        self._is_closed = True
        name, self._name = self._name, ""
        if name:
            with _shared_lock:
                maps, users = _shared.pop((self.kind, name))
                if users > 1:
                    _shared[self.kind, name] = maps, users - 1

    def check_open(self) -> None:
        if self._is_closed:
            raise errors.closed(self.kind, self.address)

    def _opened(self, name: str, schema: Schema) -> _Maps:
        with _shared_lock:
            if (self.kind, name) not in _shared:
                raise errors.not_there(self.kind, self.address)
            return self._share(name, schema)

    def _share(self, name: str, schema: Schema) -> _Maps:
        maps, users = _shared.get((self.kind, name)) or (_Maps(schema), 0)
        _shared[self.kind, name] = maps, users + 1
        self._name = name
        return maps


class MemoryStore(MemoryReader):
    """Maps that are gone when the last opening of their name is closed; an empty name is never shared.

    An `exclusive` opening of a name that is open raises `Conflict`; a `shared` opening uses the same maps.
    """

    max_transaction = None
    durability = "nothing is left when it is closed"

    def __init__(self, name: str, schema: Schema, mode: Mode = "exclusive") -> None:
        self.writers: Writers = "exclusive" if mode == "exclusive" else "shared"
        super().__init__(name, schema)

    def begin(self) -> BufferedTransaction:
        self.check_open()
        return BufferedTransaction(self)

    def apply(self, batch: WriteBatch) -> None:
        self._maps.apply(batch)

    def _opened(self, name: str, schema: Schema) -> _Maps:
        if not name:
            return _Maps(schema)
        with _shared_lock:
            if self.writers == "exclusive" and (self.kind, name) in _shared:
                raise errors.in_use(self.kind, self.address)
            return self._share(name, schema)
