"""The index under test, and direct access to its records and transactions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import pytest

from holdfast.index.index import Index
from holdfast.index.records import SourceCheckpoint
from holdfast.storage.kv.store import KeyValueStore, Transaction

NOW = 1_760_000_000.0
ONE = SourceCheckpoint(1, b"one")


class IndexAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities in which backends differ. Declared, so that no test has to be skipped."""

    persistent: bool
    """Committed data survives the process and is there when the index is opened again."""
    second_opening: Literal["refused", "fences"]
    """The effect of opening an index twice: the second opening fails, or the first one cannot commit any more."""


class IndexUnderTest:
    """One index, open once at a time: `reopened` closes it first."""

    abilities: IndexAbilities

    def open_store(self) -> KeyValueStore:
        """Open the store under test; always the same one within a test."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self._indexes: list[Index] = []
        self._stores: list[KeyValueStore] = []
        yield
        for index in self._indexes:
            index.close()

    def open(self, **options: Any) -> Index:
        """Open the index. `plant` and `planted` use the index that was opened last."""
        store = self.open_store()
        self._stores.append(store)
        index = Index(store, **{"clock": lambda: NOW, **options})
        self._indexes.append(index)
        return index

    def reopened(self, index: Index) -> Index:
        """Close the index and open it again; one that is not persistent is returned as it is."""
        if not self.abilities.persistent:
            return index
        index.close()
        return self.open()

    def now_and_reopened(self, index: Index) -> Iterator[Index]:
        """Yields the index, then the same index closed and opened again."""
        yield index
        yield self.reopened(index)

    def plant(self, space: str, key: bytes, value: bytes | None) -> None:
        """Overwrite or remove a record without going through the index, as a broken disk would."""
        with self._stores[-1].begin() as transaction:
            transaction.write({space: {key: value}})

    def break_transactions(self, broken: pytest.MonkeyPatch, name: str, replaced: Callable[..., None]) -> None:
        """Replace a method of every new transaction; `replaced` gets the real method as its first argument."""
        begin = self._stores[-1].begin

        def begin_broken() -> Transaction:
            transaction = begin()
            setattr(transaction, name, functools.partial(replaced, getattr(transaction, name)))
            return transaction

        broken.setattr(self._stores[-1], "begin", begin_broken)

    def planted(self, space: str, key: bytes) -> bytes:
        found = self._stores[-1].get(space, key)
        assert found is not None
        return found


def contents(index: Index) -> dict[bytes, bytes]:
    found = list(index.results.scan())
    assert found == sorted(found)
    return dict(found)


def fill(index: Index, number: int = 3) -> None:
    """Some results and some checkpoints."""
    with index.session():
        for count in range(number):
            index.results.put(b"key-%06d" % count, b"value-%d" % count)
            index.checkpoints.stage_checkpoint(f"source-{count}", count, b"position-%d" % count)


class WorkError(RuntimeError):
    """What a query raises when it fails."""


def write_one(index: Index) -> None:
    index.results.put(b"k", b"v")
    index.checkpoints.stage_checkpoint("s", 1, b"one")


def write_and_fail(index: Index, how: type[BaseException] = WorkError) -> None:
    with index.session():
        write_one(index)
        raise how


class SessionsUnderTest(IndexUnderTest):
    """Sessions of one result and one checkpoint, which are there together or not at all."""

    def expect(self, index: Index, is_there: bool) -> Index:
        """One result and one checkpoint, both or neither, now and after a restart; the index to go on with."""
        for found in self.now_and_reopened(index):
            assert contents(found) == ({b"k": b"v"} if is_there else {})
            assert found.results.get(b"k") == (b"v" if is_there else None)
            assert found.checkpoints.read_all_checkpoints() == ({"s": ONE} if is_there else {})
            assert found.checkpoints.read_checkpoint("s") == (ONE if is_there else None)
        return found
