"""The store under test, and what counts at its key-value store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import msgspec
import pytest

from holdfast.projections import Event, NewEvent, Projection, ProjectionStore, View, state
from holdfast.storage.kv.store import KeyValueStore, Reader, Row, Transaction, WriteBatch

NOW = 1_760_000_000.0


class ProjectionAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one key-value store does and another does not. Declared, so that a suite never finds out by skipping."""

    persistent: bool
    """What was committed is there when the store is opened again."""
    second_opening: Literal["shares", "fences", "refused"]
    """What opening a store does while it is open: both can write, the first one can write no more, or it is refused."""
    sql: bool
    """A read model can be tables of one's own."""


class CountedStore:
    """A key-value store as it is, with a record of what it is asked for and of what is committed."""

    def __init__(self, kv: Reader) -> None:
        self.kv = kv
        self.reads: list[str] = []
        """The keyspace of each request, whatever the number of keys."""
        self.keys_read = 0
        self.commits: list[WriteBatch] = []

    def __getattr__(self, name: str) -> Any:
        """What only some stores have, such as `query`."""
        return getattr(self.kv, name)

    @property
    def is_persistent(self) -> bool:
        return self.kv.is_persistent

    @property
    def address(self) -> str:
        return self.kv.address

    def get(self, space: str, key: bytes) -> bytes | None:
        self.count(space, 1)
        return self.kv.get(space, key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self.count(space, len(keys))
        return self.kv.get_many(space, keys)

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        self.count(space, 0)
        return self.counted(self.kv.scan(space, start, end, limit))

    def begin(self) -> Transaction:
        return _CountedTransaction(self, state.begin(self.kv))

    def close(self) -> None:
        self.kv.close()

    def count(self, space: str, keys: int) -> None:
        self.reads.append(space)
        self.keys_read += keys

    def counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self.keys_read += 1
            yield row

    def forget(self) -> None:
        """Count from here."""
        self.reads, self.keys_read, self.commits = [], 0, []

    def written(self, space: str) -> list[tuple[bytes, bytes | None]]:
        """What was committed to one keyspace, in all commits."""
        return [change for commit in self.commits for change in commit.get(space, {}).items()]


class _CountedTransaction:
    def __init__(self, counts: CountedStore, transaction: Transaction) -> None:
        self._counts = counts
        self._transaction = transaction
        self._batch: WriteBatch = {}

    def __getattr__(self, name: str) -> Any:
        """`execute`, where there is SQL."""
        return getattr(self._transaction, name)

    def get(self, space: str, key: bytes) -> bytes | None:
        self._counts.count(space, 1)
        return self._transaction.get(space, key)

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self._counts.count(space, len(keys))
        return self._transaction.get_many(space, keys)

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        self._counts.count(space, 0)
        return self._counts.counted(self._transaction.scan(space, start, end, limit))

    def write(self, batch: WriteBatch) -> None:
        for space, changes in batch.items():
            if changes:
                self._batch.setdefault(space, {}).update(changes)
        self._transaction.write(batch)

    def commit(self) -> None:
        self._transaction.commit()
        if self._batch:
            self._counts.commits.append(self._batch)
            self._batch = {}

    def rollback(self) -> None:
        self._transaction.rollback()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        self.commit() if kind is None else self.rollback()


class ProjectionsUnderTest:
    """One store."""

    abilities: ProjectionAbilities

    def open_kv(self) -> KeyValueStore:
        """Open the key-value store under test with `keys.SCHEMA`, always at the same place."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self._stores: list[ProjectionStore] = []
        yield
        for store in self._stores:
            store.close()

    def open(self, **options: Any) -> ProjectionStore:
        numbers = itertools.count(1)
        self.counts = CountedStore(self.open_kv())
        store = ProjectionStore(self.counts, **{"clock": lambda: NOW, "ids": lambda: f"id-{next(numbers)}", **options})
        self._stores.append(store)
        self.counts.forget()
        return store

    def reopened(self, store: ProjectionStore) -> ProjectionStore:
        """The same store after a close; the very same where nothing would be left of it."""
        if not self.abilities.persistent:
            return store
        store.close()
        return self.open()

    def plant(self, store: ProjectionStore, space: str, key: bytes, value: bytes | None) -> None:
        """Put a value there, or take one away, as nobody but a broken disk would."""
        with state.begin(store.kv) as transaction:
            transaction.write({space: {key: value}})


class Boom(RuntimeError):
    """What a handler raises when it fails."""


class Turnover(Projection):
    """Adds up, so that an event that is handled twice or not at all shows; keeps every event's place in its order."""

    name = "turnover"

    def handle(self, event: Event, view: View) -> None:
        amount = event.json()["cents"]
        if amount == "bad":
            raise Boom("bad amount")
        total = int(view.get(b"total") or 0) + amount
        view.put(b"total", b"%d" % total)
        view.put(b"seen/%08d" % event.position, f"{event.stream} {event.sequence}".encode())


def paid(cents: Any) -> NewEvent:
    return NewEvent("paid", {"cents": cents})


def contents(store: ProjectionStore, name: str = "turnover") -> dict[bytes, bytes]:
    found = list(store.view(name).scan())
    assert found == sorted(found)
    return dict(found)


def fresh_fold(store: ProjectionStore, until: int | None = None, prefix: str = "") -> dict[bytes, bytes]:
    """What `Turnover` should have made of the store's events."""
    found: dict[bytes, bytes] = {}
    for event in store.read_all():
        amount = event.json()["cents"]
        if (until is None or event.position <= until) and event.stream.startswith(prefix) and amount != "bad":
            found[b"total"] = b"%d" % (int(found.get(b"total", b"0")) + amount)
            found[b"seen/%08d" % event.position] = f"{event.stream} {event.sequence}".encode()
    return found
