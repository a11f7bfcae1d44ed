"""The index under test, and the ways round it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import pytest

from holdfast.index.index import Index
from holdfast.storage.kv.store import KeyValueStore, Transaction

NOW = 1_760_000_000.0


class IndexAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend does and another does not. Declared, so that a suite never finds out by skipping."""

    persistent: bool
    """A commit outlives the process, and what was committed is there when the index is opened again."""
    second_opening: Literal["refused", "fences"]
    """What opening an index does while it is open: it fails, or the first one can commit no more."""


class IndexUnderTest:
    """One index. It is opened once at a time; `reopened` closes it before."""

    abilities: IndexAbilities

    def open_store(self) -> KeyValueStore:
        """Open the store under test, always at the same place."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self._indexes: list[Index] = []
        self._stores: list[KeyValueStore] = []
        yield
        for index in self._indexes:
            index.close()

    def open(self, **options: Any) -> Index:
        """Open the index. What is damaged with `plant` is damaged in the one opened last."""
        store = self.open_store()
        self._stores.append(store)
        index = Index(store, **{"clock": lambda: NOW, **options})
        self._indexes.append(index)
        return index

    def reopened(self, index: Index) -> Index:
        """The same index after a close; the very same where nothing would be left of it."""
        if not self.abilities.persistent:
            return index
        index.close()
        return self.open()

    def now_and_reopened(self, index: Index) -> Iterator[Index]:
        """The index as it is, then as it is after a close and an opening."""
        yield index
        yield self.reopened(index)

    def plant(self, space: str, key: bytes, value: bytes | None) -> None:
        """Put a value there, or take one away, as nobody but a broken disk would."""
        with self._stores[-1].begin() as transaction:
            transaction.write({space: {key: value}})

    def break_transactions(self, broken: pytest.MonkeyPatch, name: str, replaced: Callable[..., None]) -> None:
        """From now on a method of every transaction is another one, which is given the real one first."""
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
