"""Read models: `View`, which a projection's handler writes, and `ReadModel`, which applications read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard, TypeVar, cast

from holdfast.base.arguments import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    check_key,
    check_prefix,
    check_text,
    check_value,
    refused,
)
from holdfast.errors import Invalid
from holdfast.projections import keys, state
from holdfast.storage.kv.store import Reader, Row, SqlReader, SqlTransaction, Transaction, end_of


class View(Protocol):
    """A read model as a handler sees it: an ordered map of bytes. Reads see the writes of this and earlier events."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def scan(self, prefix: bytes = b"") -> Iterator[Row]: ...

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]: ...

    def table(self, name: str) -> str: ...


class MemoryView:
    """A read model in this process's memory, for replays whose result is not stored. It has no SQL."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(check_key(key))

    def put(self, key: bytes, value: bytes) -> None:
        self.values[check_key(key)] = check_value(value)

    def delete(self, key: bytes) -> None:
        self.values.pop(check_key(key), None)

    def scan(self, prefix: bytes = b"") -> Iterator[Row]:
        prefix = check_prefix(prefix)
        return iter([row for row in sorted(self.values.items()) if row[0].startswith(prefix)])

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        raise no_sql("a view in memory")

    def table(self, name: str) -> str:
        raise no_sql("a view in memory")


_UNTOUCHED = object()


class StoredView:
    """A read model in the store, during one batch. Its writes become durable in one commit with the batch's cursors.

    SQL runs at once in the transaction of the batch, which the first `execute` opens: from then on no other
    transaction can write to the store until the batch is committed.
    """

    def __init__(self, kv: Reader, name: bytes, build: int, begin: Callable[[], Transaction]) -> None:
        self._kv = kv
        self._name, self._build = name, build
        self._prefix = keys.of_build(name, build)
        self._begin = begin
        self._written: dict[bytes, bytes | None] = {}
        self._undo: list[tuple[bytes, Any]] = []
        self._transaction: SqlTransaction | None = None
        self.has_run_sql = False
        """Whether the current event has run SQL."""

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes or not 0 < len(key) <= MAX_KEY_BYTES:
            key = check_key(key)
        try:
            return self._written[key]
        except KeyError:
            return self._kv.get("views", self._prefix + key)

    def put(self, key: bytes, value: bytes) -> None:
        # Fast path: plain bytes within the limits, as in most calls, skip the checking functions.
        if type(key) is not bytes or type(value) is not bytes or not 0 < len(key) <= MAX_KEY_BYTES:
            key, value = check_key(key), check_value(value)
        elif len(value) > MAX_VALUE_BYTES:
            check_value(value)
        self._undo.append((key, self._written.get(key, _UNTOUCHED)))
        self._written[key] = value

    def delete(self, key: bytes) -> None:
        key = check_key(key)
        self._undo.append((key, self._written.get(key, _UNTOUCHED)))
        self._written[key] = None

    def scan(self, prefix: bytes = b"") -> Iterator[Row]:
        """Keys that begin with these bytes, in order, as they are when this is called."""
        prefix = check_prefix(prefix)
        found = dict(scan_views(self._kv, self._prefix, prefix))
        for key, value in self._written.items():
            if key.startswith(prefix):
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return iter(sorted(found.items()))

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run one SQL statement in the batch's transaction, on tables named with `table`. Returns its rows."""
        if self._transaction is None:
            if not has_sql(self._kv):
                raise no_sql(self._kv.address)
            self._transaction = sql_of(self._begin())
        self.has_run_sql = True
        return self._transaction.execute(sql, parameters)

    def table(self, name: str) -> str:
        """The quoted name of a table of this read model, for SQL. Each build has its own tables, which go with it."""
        if not has_sql(self._kv):
            raise no_sql(self._kv.address)
        return table_name(self._kv, self._name, self._build, name)

    def accept(self) -> None:
        """Keep the event's changes: it was handled."""
        self._undo.clear()
        self.has_run_sql = False

    def undo(self) -> None:
        """Undo the event's changes. Its SQL can only be undone with the whole transaction."""
        for key, value in reversed(self._undo):
            if value is _UNTOUCHED:
                del self._written[key]
            else:
                self._written[key] = value
        self._undo.clear()

    def writes(self) -> dict[bytes, bytes | None]:
        prefix = self._prefix
        return {prefix + key: value for key, value in self._written.items()}


_UNESCAPED = b"abcdefghijklmnopqrstuvwxyz0123456789"


def scan_views(kv: Reader, of_build: bytes, prefix: bytes) -> Iterator[Row]:
    start = of_build + prefix
    for key, value in kv.scan("views", start, end_of(start)):
        yield key[len(of_build) :], value


def has_sql(kv: Reader) -> TypeGuard[SqlReader]:
    """Whether a read model can have tables of its own in this store."""
    return hasattr(kv, "query")


def sql_of(transaction: Transaction) -> SqlTransaction:
    """The same transaction, typed as one with SQL. Only for stores that have SQL."""
    return cast(SqlTransaction, transaction)


def no_sql(address: str) -> Invalid:
    return Invalid(
        f"{address} has no SQL.",
        code="view.no-sql",
        about=address,
        unchanged="the store",
        next_step="keep the read model with put, get, delete and scan, or use sqlite:///path or postgresql://host/database",
    )


def table_prefix(kv: SqlReader, name: bytes, build: int) -> str:
    """The prefix of the names of a build's tables."""
    return f"{kv.table_prefix}view_x_{_escaped(name)}_x_{build}_x_"


def table_name(kv: SqlReader, name: bytes, build: int, table: str) -> str:
    """The quoted name of a table of one build of a projection's read model."""
    found = table_prefix(kv, name, build) + _escaped(check_text("table", table))
    if kv.max_table_name is not None and len(found) > kv.max_table_name:
        raise refused("table", f"its full name {found!r} exceeds the {kv.max_table_name} bytes of {kv.address}")
    return f'"{found}"'


def _escaped(name: bytes) -> str:
    """Keep lower-case letters and digits, replace every other byte by `_` and two hex digits.

    So the separator `_x_` never occurs. Upper-case letters are replaced because SQLite ignores case in names.
    """
    return "".join(chr(byte) if byte in _UNESCAPED else f"_{byte:02x}" for byte in name)


_T = TypeVar("_T")


class ReadModel:
    """The live read model of one projection, read only. Reads return committed data of one build."""

    def __init__(self, kv: Reader, name: str) -> None:
        self._kv = kv
        self._ref = state.live_build(name)

    def __repr__(self) -> str:
        return f"ReadModel({self._ref.name!r}, {self._kv.address!r})"

    def get(self, key: bytes) -> bytes | None:
        key = check_key(key)
        return self._on_live_build(lambda build: self._kv.get("views", keys.of_build(self._ref.escaped, build) + key))

    def scan(self, prefix: bytes = b"") -> Iterator[Row]:
        """Keys that begin with these bytes, in order, as they are when this is called."""
        prefix = check_prefix(prefix)
        return iter(
            self._on_live_build(
                lambda build: list(scan_views(self._kv, keys.of_build(self._ref.escaped, build), prefix))
            )
        )

    def query(self, sql: Callable[[Callable[[str], str]], str], parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Rows from the read model's own tables: `view.query(lambda table: f"SELECT * FROM {table('orders')}")`.

        `sql` is called again if a rebuild switches to another build meanwhile.
        """

        kv = self._kv
        if not has_sql(kv):
            raise no_sql(kv.address)

        def run_query(build: int) -> list[tuple[Any, ...]]:
            return kv.query(sql(lambda name: table_name(kv, self._ref.escaped, build, name)), parameters)

        return self._on_live_build(run_query)

    def _on_live_build(self, ask: Callable[[int], _T]) -> _T:
        """Read until the build is still live after the read: a build that was replaced may be half removed."""
        build = self._build()
        while True:
            try:
                found = ask(build)
            except Exception:  # the table may have been dropped with its build
                if (now := self._build()) == build:
                    raise
            else:
                if (now := self._build()) == build:
                    return found
            build = now

    def _build(self) -> int:
        found = state.read(self._kv, self._ref.key, self._kv.address)
        return found.build if found else 1
