"""The protocol of a key-value store: some ordered maps of bytes, changed together in transactions.

`Index` and `ProjectionStore` stand on it. Meaning (sessions, checkpoints, events, cursors) is added above; here
are only keyspaces, keys and values. What a backend can do is data (`writers`, `max_transaction`) or a protocol of its
own (`SqlStore`), never a method that raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

from msgspec import Struct

Kind = Literal["index", "store"]
"""Which of the two models a store holds. Every error code of the store begins with it."""
Mode = Literal["read", "exclusive", "shared"]
Writers = Literal["exclusive", "fencing", "shared"]
Row = tuple[bytes, bytes]

WriteBatch = dict[str, dict[bytes, bytes | None]]
"""New values by keyspace and key; None deletes the key."""


class Keyspace(Struct, frozen=True):
    """One ordered map, and its name in each backend."""

    name: str
    """Its name in a `WriteBatch`; also on Redis and PostgreSQL."""
    table: str
    """On SQLite."""
    prefix: bytes
    """Before every key on RocksDB and SlateDB. No prefix begins with another one."""


class Schema(Struct, frozen=True):
    """The keyspaces of a store, and the marks by which its files are recognised."""

    kind: Kind
    keyspaces: tuple[Keyspace, ...]
    application_id: int
    """In the header of a SQLite file."""
    version: int
    """Of the tables. A store with a higher one is refused."""
    settings: tuple[str, ...] = ()
    """PRAGMAs of the SQLite connection that writes."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(keyspace.name for keyspace in self.keyspaces)

    @property
    def prefixes(self) -> dict[str, bytes]:
        return {keyspace.name: keyspace.prefix for keyspace in self.keyspaces}


class Reader(Protocol):
    """Committed data. This is all that a read-only opening returns: it takes no lock and fences no writer."""

    @property
    def address(self) -> str:
        """Where it is, for messages: no secrets."""

    @property
    def is_persistent(self) -> bool:
        """Whether a commit outlives the process."""

    def get(self, space: str, key: bytes) -> bytes | None:
        """The committed value; None if there is none."""

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none, all of one moment."""

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """Keys from `start` up to and without `end`, in order of their bytes, with their values. None: to the last.

        In memory that does not grow with their number. Of one moment, except on Redis, where each page is. A scan that
        is under way when the store is closed raises.
        """

    def close(self) -> None:
        """Close the store; roll back an open transaction. Fine to call twice."""


class Transaction(Protocol):
    """Changes that become visible and durable together.

    From its first read or write on it is the only one: others wait, other processes are refused or fenced. `Invalid` if
    this thread has another one open. Its reads see what was committed before it began and never its own writes, also
    after part of them went to the backend. As a context manager it commits at the end of the block, and rolls back if
    the block raises.
    """

    def get(self, space: str, key: bytes) -> bytes | None: ...

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """To be read before the transaction ends."""

    def write(self, batch: WriteBatch) -> None:
        """Add to what the commit writes; the last change of a key wins. The batch is the transaction's from now on.

        May send a part of the transaction to the backend, invisible to others. If it raises, the transaction can only
        be rolled back.
        """

    def commit(self) -> None:
        """Make everything visible and durable in one step. Nothing happens if the transaction has ended before.

        Afterwards the transaction has ended, whatever happened. If it raises, nothing was applied; `OutcomeUnknown`
        alone means that this could not be found out. `Fenced` if another process has opened a fencing store since.
        """

    def rollback(self) -> None:
        """Forget everything. Fine from any thread, a second time, and after a failure."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None: ...


@runtime_checkable
class KeyValueStore(Reader, Protocol):
    """A store that is open for writing. Threads may share it."""

    @property
    def writers(self) -> Writers:
        """What a second opening for writing does: it is refused, fences the first one, or shares the store."""

    @property
    def max_transaction(self) -> int | None:
        """How many bytes a transaction may hold; None: it may outgrow memory."""

    @property
    def durability(self) -> str:
        """What a commit survives: a sentence for people, without the full stop."""

    def begin(self) -> Transaction:
        """A new transaction. It takes nothing before its first read or write."""


@runtime_checkable
class SqlTransaction(Transaction, Protocol):
    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run one SQL statement at once, as part of this transaction; its rows.

        A mistake in the statement raises the client library's own error, a failure of the backend one of ours.
        """


class SqlReader(Reader, Protocol):
    """A reader beside whose keyspaces a read model can have tables of its own."""

    @property
    def table_prefix(self) -> str:
        """What the name of every such table has to begin with: several stores may share one database."""

    @property
    def max_table_name(self) -> int | None:
        """How many bytes a table's name may have; None: any number."""

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Read committed data by SQL."""

    def tables(self, prefix: str) -> list[str]:
        """The names of the tables that begin so."""


@runtime_checkable
class SqlStore(KeyValueStore, SqlReader, Protocol):
    """A store that has SQL. Its transactions are `SqlTransaction`s."""


def end_of(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if every later key does, as with b"" and b"\\xff"."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None
