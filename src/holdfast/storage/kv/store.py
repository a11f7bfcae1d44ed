"""The protocol of a key-value store: some ordered maps of bytes, changed together in transactions.

`Index` and `ProjectionStore` are built on it. They add the meaning (sessions, checkpoints, events, cursors); this
module knows only keyspaces, keys and values. The abilities of a backend are data (`writers`, `max_transaction`) or a
protocol of its own (`SqlStore`), never a method that raises.
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
    """The name in a `WriteBatch`, on Redis and on PostgreSQL."""
    table: str
    """The name of the table on SQLite."""
    prefix: bytes
    """The prefix of every key on RocksDB and SlateDB. No prefix begins with another one."""


class Schema(Struct, frozen=True):
    """The keyspaces of a store, and the marks by which its files are recognised."""

    kind: Kind
    keyspaces: tuple[Keyspace, ...]
    application_id: int
    """The application id in the header of a SQLite file."""
    version: int
    """The version of the tables. A store with a higher one is refused."""
    settings: tuple[str, ...] = ()
    """PRAGMAs for the writing SQLite connection."""
    page_size: int = 4096
    """Bytes of a page in a new SQLite file: small for small records all over it, because each change logs its page."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(keyspace.name for keyspace in self.keyspaces)

    @property
    def prefixes(self) -> dict[str, bytes]:
        return {keyspace.name: keyspace.prefix for keyspace in self.keyspaces}


class Reader(Protocol):
    """Reads committed data. A read-only opening returns only this: it takes no lock and fences no writer."""

    @property
    def address(self) -> str:
        """The address for messages, without secrets."""

    @property
    def is_persistent(self) -> bool:
        """Whether a commit outlives the process."""

    def get(self, space: str, key: bytes) -> bytes | None:
        """The committed value; None if there is none."""

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none, all as of one moment."""

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """Keys from `start` up to but not including `end` (None: to the last), in byte order, with their values.

        Memory does not grow with their number. The scan sees one moment, except on Redis, where each page sees its own.
        A scan under way when the store is closed raises.
        """

    def close(self) -> None:
        """Close the store; roll back an open transaction. Fine to call twice."""


class Transaction(Protocol):
    """Changes that become visible and durable together.

    From its first read or write on it is the only transaction: others wait, other processes are refused or fenced.
    `Invalid` if this thread has another one open. Its reads see data that was committed before it began and never its
    own writes, even after part of them was sent to the backend. As a context manager it commits at the end of the
    block, and rolls back if the block raises.
    """

    def get(self, space: str, key: bytes) -> bytes | None: ...

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        """The scan must be consumed before the transaction ends."""

    def write(self, batch: WriteBatch) -> None:
        """Add writes to the transaction; the last change of a key wins. The caller must not use `batch` afterwards.

        May send a part of the transaction to the backend, invisible to others. If it raises, the transaction can only
        be rolled back.
        """

    def commit(self) -> None:
        """Make everything visible and durable in one step. Does nothing if the transaction has ended before, but raises
        again if its first read or write failed, since it has not begun then.

        Afterwards the transaction has ended, also if this raises. If it raises, nothing was applied, except after
        `OutcomeUnknown`: then it is not known whether it was applied. `Fenced` if another process has opened a fencing
        store meanwhile.
        """

    def rollback(self) -> None:
        """Discard everything. Fine from any thread, a second time, and after a failure."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None: ...


@runtime_checkable
class KeyValueStore(Reader, Protocol):
    """A store that is open for writing. Threads may share it."""

    @property
    def writers(self) -> Writers:
        """Whether a second opening for writing is refused, fences the first one, or shares the store."""

    @property
    def max_transaction(self) -> int | None:
        """The largest size (`transaction_size`) of a transaction that is surely taken; None: larger than memory."""

    @property
    def durability(self) -> str:
        """What a commit survives: a sentence for people, without the full stop."""

    def begin(self) -> Transaction:
        """A new transaction. It takes no lock before its first read or write."""


@runtime_checkable
class SqlTransaction(Transaction, Protocol):
    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run one SQL statement at once, as part of this transaction. Returns its rows.

        A mistake in the statement raises the client library's own error, a failure of the backend one of ours.
        """


class SqlReader(Reader, Protocol):
    """A reader of a store in which read models can have tables of their own, beside the keyspaces."""

    @property
    def table_prefix(self) -> str:
        """The prefix that every such table's name must have, because several stores may share one database."""

    @property
    def max_table_name(self) -> int | None:
        """How many bytes a table's name may have; None: any number."""

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Read committed data by SQL."""

    def tables(self, prefix: str) -> list[str]:
        """The names of the tables that begin with `prefix`."""

    def views(self, prefix: str) -> list[tuple[str, str]]:
        """The views whose names begin with `prefix`, each as its kind in a DROP statement, and its name."""


@runtime_checkable
class SqlStore(KeyValueStore, SqlReader, Protocol):
    """A store with SQL. Its transactions are `SqlTransaction`s."""


def end_of(prefix: bytes) -> bytes | None:
    """The first key after all keys that begin with `prefix`; None if there is none, as for b"" and b"\\xff"."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None
