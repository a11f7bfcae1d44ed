"""In SlateDB on object storage: one process writes, and opening the store fences the one before.

A write that SlateDB has accepted is not durable, and a writer that was fenced hears of it only when it asks: a commit
therefore ends with a flush and with the word that it is durable, and reads see nothing that is not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from slatedb.uniffi import (
    DbBuilder,
    DurabilityLevel,
    KeyRange,
    ObjectStore,
    ReadOptions,
    ScanOptions,
    WriteBatch,
)

from holdfast.base.steps import step
from holdfast.projections import slatedb_errors
from holdfast.projections.backend import Change, Row, Space
from holdfast.projections.bridge import wait_for
from holdfast.projections.keys import PREFIXES, end_of
from holdfast.projections.pending import Pending, closed, nested, no_sql

PATIENCE = 60.0
"""Seconds for one answer of the object storage, SlateDB's own retries included."""
_PAGE = 1000
_SCAN_PAGE = 5000
_T = TypeVar("_T")

log = logging.getLogger("holdfast.projections")
_durable = ReadOptions(durability_filter=DurabilityLevel.REMOTE, dirty=False, cache_blocks=True)
_durable_scan = ScanOptions(
    durability_filter=DurabilityLevel.REMOTE,
    dirty=False,
    read_ahead_bytes=1 << 20,
    cache_blocks=True,
    max_fetch_tasks=4,
)


class SlatedbBackend:
    """A database under a path of a bucket.

    Guarantees: a commit that returns is in the object storage; of several processes the one that opened it last writes.
    Does not guarantee: that a process which was fenced and only reads notices at once, nor anything about `file://`,
    where nothing is synced.
    """

    is_persistent = True
    has_sql = False

    def __init__(self, root: str, path: str) -> None:
        self.address = f"{root.rstrip('/')}/{path}" if not root.startswith("file:") else f"file:///{path}"
        self._writing = threading.Lock()
        self._owner: int | None = None
        self._is_lost: str | None = None
        self._db: Any = None
        if root.startswith("file:"):
            log.warning("%s: SlateDB does not sync local files; a power cut may lose what was committed", self.address)
        with_store = DbBuilder(path, self._resolved(root))
        with step("slatedb.open"):
            try:
                self._db = wait_for(with_store.build(), PATIENCE)
            except slatedb_errors.FAILURES as error:
                raise slatedb_errors.explained(error, self.address) from error
        _open.add(self)

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = PREFIXES[space]
        return self._ask(_read(self._usable(), [prefix + key for key in keys]))

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        prefix = PREFIXES[space]
        last = end_of(prefix) if end is None else prefix + end
        rows = self._ask(_scan(self._usable(), prefix + start, last, limit))
        return [(key[len(prefix) :], value) for key, value in rows]

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        raise no_sql(self.address)

    def begin(self) -> SlatedbTransaction:
        if self._owner == threading.get_ident():
            raise nested(self.address)
        self._usable()
        self._writing.acquire()
        self._owner = threading.get_ident()
        return SlatedbTransaction(self)

    def commit(self, pending: Pending) -> None:
        """Write one batch and wait until it is durable."""
        batch = WriteBatch()
        for space, puts in pending.puts.items():
            prefix = PREFIXES[space]
            for key, value in puts.items():
                batch.put(prefix + key, value)
        for space, removals in pending.removals.items():
            prefix = PREFIXES[space]
            for key in removals:
                batch.delete(prefix + key)
        database = self._usable()
        try:
            with step("slatedb.write"):
                handle = wait_for(database.write(batch), PATIENCE)
            with step("slatedb.durable"):
                wait_for(_made_durable(database, handle), PATIENCE)
        except BaseException as error:
            self._is_lost = str(error) or type(error).__name__
            if isinstance(error, slatedb_errors.FAILURES):
                raise slatedb_errors.of_commit(error, self.address) from error
            raise

    def ended(self) -> None:
        """A transaction is over, however it ended."""
        self._owner = None
        self._writing.release()

    def close(self) -> None:
        _open.discard(self)
        database, self._db = self._db, None
        if database is not None:
            try:
                wait_for(database.shutdown(), PATIENCE)
            except slatedb_errors.FAILURES as error:  # everything that was reported is durable already
                log.warning("%s was not closed well: %s", self.address, error)

    def forget_in_child(self) -> None:
        """In a forked child: SlateDB's threads are the parent's."""
        self._db = None
        self._writing, self._owner = threading.Lock(), None

    def _resolved(self, root: str) -> Any:
        try:
            return ObjectStore.resolve(root)
        except slatedb_errors.SlatedbError as error:
            raise slatedb_errors.explained(error, self.address) from error

    def _ask(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return wait_for(work, PATIENCE)
        except slatedb_errors.FAILURES as error:
            raise slatedb_errors.explained(error, self.address) from error

    def _usable(self) -> Any:
        if self._db is None:
            raise closed(self.address)
        if self._is_lost is not None and self._db.status().close_reason is None:
            raise slatedb_errors.lost(self.address, self._is_lost)
        return self._db


class SlatedbTransaction:
    """Holds the lock of its backend from its beginning: this process is the only writer there is."""

    def __init__(self, backend: SlatedbBackend) -> None:
        self._backend = backend
        self._pending: Pending | None = Pending()

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._backend.read(space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        return self._backend.scan(space, start, end, limit)

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        raise no_sql(self._backend.address)

    def write(self, changes: Iterable[Change]) -> None:
        assert self._pending is not None
        self._pending.add(changes)

    def commit(self) -> None:
        try:
            if self._pending:  # SlateDB refuses an empty batch
                self._backend.commit(self._pending)
        finally:
            self.rollback()

    def rollback(self) -> None:
        if self._pending is not None:
            self._pending = None
            self._backend.ended()

    def __enter__(self) -> SlatedbTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        self.commit() if kind is None else self.rollback()


async def _read(database: Any, keys: list[bytes]) -> list[bytes | None]:
    if len(keys) == 1:
        return [await database.get_with_options(keys[0], _durable)]
    moment = await database.snapshot()
    found: list[bytes | None] = []
    for start in range(0, len(keys), _PAGE):
        some = keys[start : start + _PAGE]
        found += await asyncio.gather(*[moment.get_with_options(key, _durable) for key in some])
    return found


async def _scan(database: Any, start: bytes, end: bytes | None, limit: int | None) -> list[Row]:
    if end is not None and start >= end:
        return []
    wanted = KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
    iterator = await database.scan_with_options(wanted, _durable_scan)
    rows: list[Row] = []
    while limit is None or len(rows) < limit:
        some = await iterator.next_batch(_SCAN_PAGE if limit is None else min(_SCAN_PAGE, limit - len(rows)))
        if not some:
            break
        rows += [(bytes(row.key), bytes(row.value)) for row in some]
    return rows


async def _made_durable(database: Any, handle: Any) -> None:
    await database.flush()
    await handle.await_durable()


_open: weakref.WeakSet[SlatedbBackend] = weakref.WeakSet()


def _forget_all() -> None:
    for backend in list(_open):
        backend.forget_in_child()


os.register_at_fork(after_in_child=_forget_all)
