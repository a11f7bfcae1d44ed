"""In this process's memory: for tests, and for read models that may be computed again."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.projections.backend import SPACES, Change, Row, Space
from holdfast.projections.pending import Pending, closed, nested, no_sql

_shared: dict[str, tuple[_Maps, int]] = {}
_shared_lock = threading.Lock()


class _Maps:
    """What several openings of one name share."""

    def __init__(self) -> None:
        self.writing = threading.Lock()
        self.looking = threading.Lock()
        self.owner: int | None = None
        self.values: dict[Space, dict[bytes, bytes]] = {space: {} for space in SPACES}
        self.keys: dict[Space, list[bytes]] = {space: [] for space in SPACES}

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        with self.looking:
            values = self.values[space]
            return [values.get(key) for key in keys]

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        with self.looking:
            keys, values = self.keys[space], self.values[space]
            first = bisect_left(keys, start)
            last = len(keys) if end is None else bisect_left(keys, end)
            if limit is not None:
                last = min(last, first + limit)
            return [(key, values[key]) for key in keys[first:last]]

    def apply(self, pending: Pending) -> None:
        with self.looking:
            for space, puts in pending.puts.items():
                values, keys = self.values[space], self.keys[space]
                new = [key for key in puts if key not in values]
                values.update(puts)
                if len(new) > 64:
                    keys.extend(new)
                    keys.sort()
                else:
                    for key in new:
                        insort(keys, key)
            for space, removals in pending.removals.items():
                values = self.values[space]
                gone = {key for key in removals if values.pop(key, None) is not None}
                if gone:
                    self.keys[space] = [key for key in self.keys[space] if key not in gone]


class MemoryBackend:
    """Maps that are gone when the last of those that opened them closes; an empty name is shared with nobody."""

    is_persistent = False
    has_sql = False

    def __init__(self, name: str = "") -> None:
        self.address = f"memory://{name}"
        self._name = name
        self._is_open = True
        with _shared_lock:
            self._maps, users = _shared.get(name, (_Maps(), 0)) if name else (_Maps(), 0)
            if name:
                _shared[name] = self._maps, users + 1

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        return self._maps.read(space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        self._check_open()
        return self._maps.scan(space, start, end, limit)

    def begin(self) -> MemoryTransaction:
        self._check_open()
        if self._maps.owner == threading.get_ident():
            raise nested(self.address)
        return MemoryTransaction(self._maps, self.address)

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        raise no_sql(self.address)

    def close(self) -> None:
        if self._is_open and self._name:
            with _shared_lock:
                maps, users = _shared[self._name]
                if users > 1:
                    _shared[self._name] = maps, users - 1
                else:
                    del _shared[self._name]
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise closed(self.address)


class MemoryTransaction:
    """Holds the lock of its maps from the start; what it writes is applied at its end."""

    def __init__(self, maps: _Maps, address: str) -> None:
        maps.writing.acquire()
        self._address = address
        maps.owner = threading.get_ident()
        self._maps = maps
        self._pending: Pending | None = Pending()

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._maps.read(space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        return self._maps.scan(space, start, end, limit)

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        raise no_sql(self._address)

    def write(self, changes: Iterable[Change]) -> None:
        assert self._pending is not None
        self._pending.add(changes)

    def commit(self) -> None:
        if self._pending is not None:
            self._maps.apply(self._pending)
        self.rollback()

    def rollback(self) -> None:
        if self._pending is not None:
            self._pending = None
            self._maps.owner = None
            self._maps.writing.release()

    def __enter__(self) -> MemoryTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        self.commit() if kind is None else self.rollback()
