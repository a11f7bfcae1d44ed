"""The key-value store under test, and what is written to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.storage.kv.store import Keyspace, KeyValueStore, Kind, Reader, Row, Schema, WriteBatch, Writers, end_of

SCHEMAS = {
    "index": Schema(
        kind="index",
        keyspaces=(Keyspace("meta", "meta", b"m"), Keyspace("results", "results", b"r")),
        application_id=0x48664978,
        version=1,
    ),
    "store": Schema(
        kind="store",
        keyspaces=(
            Keyspace("events", "holdfast_events", b"g/"),
            Keyspace("results", "holdfast_views", b"v/"),
            Keyspace("meta", "holdfast_meta", b"m/"),
        ),
        application_id=0x48664573,
        version=1,
        settings=("cache_size = -65536", "wal_autocheckpoint = 8192"),
    ),
}
"""One like that of an index, one like that of a store of events; both have `meta` and `results`."""
MEGABYTE = 1 << 20


class KeyValueAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend does and another does not. Declared, so that a suite never finds out by skipping."""

    persistent: bool
    """What was committed is there when the store is opened again."""
    writers: Writers
    """What a second opening for writing does."""
    max_transaction: int | None = None
    sql: bool = False
    scans_one_moment: bool = True
    """A scan shows nothing of what is committed after it began."""
    reads_one_moment: bool = False
    """A read-only opening shows the moment of the opening, and nothing later."""


def puts(numbers: range, value: bytes = b"v", prefix: bytes = b"k") -> dict[bytes, bytes | None]:
    return {prefix + b"%06d" % number: value for number in numbers}


def rows(reader: Any, space: str = "results", prefix: bytes = b"") -> list[Row]:
    return list(reader.scan(space, prefix, end_of(prefix)))


class KeyValueUnderTest:
    """One store."""

    abilities: KeyValueAbilities

    kind: Kind = "index"

    def open_store(self, schema: Schema) -> KeyValueStore:
        """Open the store under test for writing, always at the same place."""
        raise NotImplementedError

    def open_reader(self, schema: Schema) -> Reader:
        """Open the same place to read only."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self._open: list[Reader] = []
        yield
        for store in reversed(self._open):
            store.close()

    @property
    def schema(self) -> Schema:
        return SCHEMAS[self.kind]

    def open(self) -> KeyValueStore:
        store = self.open_store(self.schema)
        self._open.append(store)
        return store

    def look(self) -> Reader:
        reader = self.open_reader(self.schema)
        self._open.append(reader)
        return reader

    def reopened(self, store: KeyValueStore) -> KeyValueStore:
        """The same store after a close; the very same where nothing would be left of it."""
        if not self.abilities.persistent:
            return store
        store.close()
        return self.open()

    def commit(self, store: KeyValueStore, batch: WriteBatch) -> None:
        with store.begin() as transaction:
            transaction.write(batch)
