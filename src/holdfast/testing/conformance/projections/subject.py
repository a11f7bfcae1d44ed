"""The store under test, on a key-value store that counts reads and records commits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

import msgspec
import pytest

from holdfast.projections import Append, Event, NewEvent, Projection, ProjectionRunner, ProjectionStore, View, state
from holdfast.storage.kv.store import KeyValueStore, Reader, Row, Transaction, WriteBatch

NOW = 1_760_000_000.0


class ProjectionAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities in which key-value stores differ. Declared, so that no test has to be skipped."""

    persistent: bool
    """Committed data is there when the store is opened again."""
    second_opening: Literal["shares", "fences", "refused"]
    """The effect of opening a store twice: both can write, the first one is fenced, or the second one is refused."""
    sql: bool
    """A read model can have SQL tables of its own."""


class CountedStore:
    """A wrapper of a key-value store that counts reads and records commits."""

    def __init__(self, kv: Reader) -> None:
        self.kv = kv
        self.reads: list[str] = []
        """The keyspace of each read, one entry for any number of keys."""
        self.keys_read = 0
        self.commits: list[WriteBatch] = []

    def __getattr__(self, name: str) -> Any:
        """Passes on the methods that only some stores have, such as `query`."""
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
        """Start counting anew."""
        self.reads, self.keys_read, self.commits = [], 0, []

    def written(self, space: str) -> list[tuple[bytes, bytes | None]]:
        """The changes of one keyspace in all commits."""
        return [change for commit in self.commits for change in commit.get(space, {}).items()]


class _CountedTransaction:
    def __init__(self, counts: CountedStore, transaction: Transaction) -> None:
        self._counts = counts
        self._transaction = transaction
        self._batch: WriteBatch = {}

    def __getattr__(self, name: str) -> Any:
        """Passes on `execute` of a transaction with SQL."""
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
        """Open the key-value store under test with `keys.SCHEMA`; always the same one within a test."""
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
        """Close the store and open it again; one that is not persistent is returned as it is."""
        if not self.abilities.persistent:
            return store
        store.close()
        return self.open()

    def plant(self, store: ProjectionStore, space: str, key: bytes, value: bytes | None) -> None:
        """Overwrite or remove a record without going through the store, as a broken disk would."""
        with state.begin(store.kv) as transaction:
            transaction.write({space: {key: value}})


class Boom(RuntimeError):
    """The error of a handler that fails."""


class Turnover(Projection):
    """A sum, which reveals an event that is handled twice or not at all, and a key for every event handled."""

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
    """The read model that `Turnover` should have, computed from the store's events."""
    found: dict[bytes, bytes] = {}
    for event in store.read_all():
        amount = event.json()["cents"]
        if (until is None or event.position <= until) and event.stream.startswith(prefix) and amount != "bad":
            found[b"total"] = b"%d" % (int(found.get(b"total", b"0")) + amount)
            found[b"seen/%08d" % event.position] = f"{event.stream} {event.sequence}".encode()
    return found


class Doubled(Turnover):
    """The next version: another read model from the same events."""

    version = 2

    def handle(self, event: Event, view: View) -> None:
        super().handle(event, view)
        view.put(b"total", b"%d" % (int(view.get(b"total") or 0) + event.json()["cents"]))


class Other(Turnover):
    name = "other"


def spaces_left(store: ProjectionStore) -> tuple[int, int]:
    """How many builds have keys in read models, and how many cursors of rebuilds are left."""
    builds = {key[: len(b"turnover/") + 8] for key, _ in store.kv.scan("views", b"turnover/", b"turnover0")}
    return len(builds), len(list(store.kv.scan("shadows", b"", None)))


class CaughtUpUnderTest(ProjectionsUnderTest):
    """One store whose projection has handled every event."""

    def caught_up(self, **options: Any) -> tuple[ProjectionStore, ProjectionRunner]:
        store = self.open(**options)
        store.append_many([Append(f"order-{n}", [paid(n + 1), paid(10)]) for n in range(3)])
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Turnover())
        return store, runner


class FilledUnderTest(ProjectionsUnderTest):
    """One store with events that no projection has handled."""

    def filled(self, streams: int = 3, events: int = 2, **options: Any) -> ProjectionStore:
        store = self.open(**options)
        store.append_many([Append(f"order-{n}", [paid(n + 1)] * events) for n in range(streams)])
        self.counts.forget()
        return store

    def check(self, store: ProjectionStore, **about: Any) -> None:
        """The read model and the cursors are those of a fresh fold."""
        position = store.lag("turnover").position
        assert contents(store) == fresh_fold(store, position, **about)
        expected: dict[str, int] = {}
        for event in store.read_all():
            if event.position <= position:
                expected[event.stream] = event.sequence
        assert store.load_projection_checkpoint("turnover").cursors == expected
