"""The store under test, and what counts at its backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import pytest

from holdfast.projections import Event, NewEvent, Projection, ProjectionStore, View
from holdfast.projections.backend import Backend, Change, Row, Space, Transaction

NOW = 1_760_000_000.0


class ProjectionAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend does and another does not. Declared, so that a suite never finds out by skipping."""

    persistent: bool
    """What was committed is there when the store is opened again."""
    second_opening: Literal["shares", "fences"]
    """What opening a store does while it is open: both can write, or the first one can write no more."""
    sql: bool
    """A read model can be tables of one's own."""


class CountedBackend:
    """A backend as it is, with a record of what it is asked for and of what is committed."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.reads: list[Space] = []
        """One entry per request, whatever the number of keys."""
        self.keys_read = 0
        self.commits: list[list[Change]] = []

    @property
    def is_persistent(self) -> bool:
        return self.backend.is_persistent

    @property
    def address(self) -> str:
        return self.backend.address

    @property
    def has_sql(self) -> bool:
        return self.backend.has_sql

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        self.reads.append(space)
        self.keys_read += len(keys)
        return self.backend.read(space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        self.reads.append(space)
        rows = self.backend.scan(space, start, end, limit)
        self.keys_read += len(rows)
        return rows

    def begin(self) -> Transaction:
        return _Counted(self, self.backend.begin())

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        return self.backend.query(sql, parameters)

    def close(self) -> None:
        self.backend.close()

    def forget(self) -> None:
        """Count from here."""
        self.reads, self.keys_read, self.commits = [], 0, []

    def written(self, space: Space) -> list[Change]:
        """What was committed to one space, in all commits."""
        return [change for commit in self.commits for change in commit if change[0] == space]


class _Counted:
    def __init__(self, counts: CountedBackend, transaction: Transaction) -> None:
        self._counts = counts
        self._transaction = transaction
        self._changes: list[Change] = []

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        self._counts.reads.append(space)
        self._counts.keys_read += len(keys)
        return self._transaction.read(space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        self._counts.reads.append(space)
        rows = self._transaction.scan(space, start, end, limit)
        self._counts.keys_read += len(rows)
        return rows

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return self._transaction.execute(sql, parameters)

    def write(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        self._changes += changes
        self._transaction.write(changes)

    def commit(self) -> None:
        self._transaction.commit()
        if self._changes:
            self._counts.commits.append(self._changes)
            self._changes = []

    def rollback(self) -> None:
        self._transaction.rollback()

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        self.commit() if kind is None else self.rollback()


class ProjectionsUnderTest:
    """One store."""

    abilities: ProjectionAbilities

    def open_backend(self) -> Backend:
        """Open the backend under test, always at the same place."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self._stores: list[ProjectionStore] = []
        yield
        for store in self._stores:
            store.close()

    def open(self, **options: Any) -> ProjectionStore:
        numbers = itertools.count(1)
        self.counts = CountedBackend(self.open_backend())
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

    def plant(self, store: ProjectionStore, space: Space, key: bytes, value: bytes | None) -> None:
        """Put a value there, or take one away, as nobody but a broken disk would."""
        with store.backend.begin() as transaction:
            transaction.write([(space, key, value)])


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
