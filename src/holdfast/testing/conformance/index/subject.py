"""The index under test, and the ways round it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest

from holdfast.index.index import Index
from holdfast.storage.kv.backend import Backend, Space

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

    def open_backend(self) -> Backend:
        """Open the backend under test, always at the same place."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self._indexes: list[Index] = []
        self._backends: list[Backend] = []
        yield
        for index in self._indexes:
            index.close()

    def open(self, **options: Any) -> Index:
        """Open the index. What is damaged with `plant` is damaged in the one opened last."""
        backend = self.open_backend()
        self._backends.append(backend)
        index = Index(backend, **{"clock": lambda: NOW, **options})
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

    def plant(self, space: Space, key: bytes, value: bytes | None) -> None:
        """Put a value there, or take one away, as nobody but a broken disk would."""
        self._backends[-1].write({space: {key: value}})
        self._backends[-1].commit()

    def planted(self, space: Space, key: bytes) -> bytes:
        found = self._backends[-1].read(space, key)
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
