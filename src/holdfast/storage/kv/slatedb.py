"""A store in SlateDB on object storage: one process writes, and opening the store fences the one before.

A write that SlateDB has accepted is not durable yet, and a fenced writer notices only at its next request. So a commit
ends with a flush and waits until SlateDB reports it durable, and reads use a snapshot of the last commit. (A read with
SlateDB's durability filter could see half of a commit that becomes durable during the read.)
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import slatedb.uniffi as slatedb

from holdfast.base import forks
from holdfast.base.addresses import kv_path, remote_parts, scheme_of, without_secrets
from holdfast.base.steps import step
from holdfast.errors import Corrupt, Fenced, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.storage.kv import errors
from holdfast.storage.kv.store import Kind, Mode, Row, Schema, WriteBatch, Writers, end_of
from holdfast.storage.kv.transaction import MAX_TRANSACTION, BufferedTransaction, Turn

PATIENCE = 60.0
"""Seconds to wait for one call, SlateDB's own retries included."""
_FAILURES = (slatedb.Error, TimeoutError)
"""The exceptions that a call of SlateDB may raise."""
_AT_ONCE = 1000
"""Keys that are read concurrently."""
_PAGE = 5000
"""Rows of a scan that are fetched in one call."""
_T = TypeVar("_T")

log = logging.getLogger("holdfast.projections")
_READ_AHEAD = slatedb.ScanOptions(
    durability_filter=slatedb.DurabilityLevel.MEMORY,
    dirty=False,
    read_ahead_bytes=1 << 20,
    cache_blocks=True,
    max_fetch_tasks=4,
)
_DAY_MS = 86_400_000
# A reader that polls would see another moment with each read, so it polls once a day.
_SNAPSHOT_READER = slatedb.ReaderOptions(
    manifest_poll_interval_ms=_DAY_MS,
    checkpoint_lifetime_ms=2 * _DAY_MS,
    max_memtable_bytes=64 << 20,
    skip_wal_replay=False,
)


class SlatedbReader:
    """A database as of the moment of opening. It fences no writer and writes nothing, not even a checkpoint.

    SlateDB's readers usually pin the files they read by a checkpoint in the database's manifest. This one does not: it
    is only for reads that end within minutes, before SlateDB removes files that are no longer needed.
    """

    is_persistent = True

    def __init__(self, url: str, schema: Schema) -> None:
        self._root, self._path, self.address = _location(url)
        self.kind = schema.kind
        self._prefixes = schema.prefixes
        self._db: Any = None
        try:
            self._db = self._opened()
        except _FAILURES as error:
            raise _explained(error, self.kind, self.address) from error
        forks.opened(self)

    def get(self, space: str, key: bytes) -> bytes | None:
        return self._ask(self._get(self._usable(), self._prefixes[space] + key))

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = self._prefixes[space]
        return self._ask(self._get_many(self._usable(), [prefix + key for key in keys]))

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        prefix = self._prefixes[space]
        first, last = prefix + start, end_of(prefix) if end is None else prefix + end
        if (last is not None and first >= last) or limit == 0:
            self._usable()
            return iter(())
        wanted = slatedb.KeyRange(start=first, start_inclusive=True, end=last, end_inclusive=False)
        rows = self._ask(self._scan(self._usable(), wanted))  # begin now: the scan is as of the moment of this call
        return self._rows(rows, len(prefix), limit)

    def close(self) -> None:
        forks.closed(self)
        database, self._db = self._db, None
        if database is not None:
            try:
                wait_for(database.shutdown(), PATIENCE)
            except _FAILURES as error:  # reported commits are durable already
                log.warning("%s was not closed cleanly: %s", self.address, error)

    def forget_in_child(self) -> None:
        """In a forked child: leak the database, whose threads exist only in the parent."""
        forks.leak(self._db)
        self._db = None

    def check_open(self) -> None:
        self._usable()

    def _opened(self) -> Any:
        objects = slatedb.ObjectStore.resolve(self._root)
        # Read first, because a reader raises the same error for a missing database and for a damaged one.
        if wait_for(slatedb.AdminBuilder(self._path, objects).build().read_manifest(None), PATIENCE) is None:
            raise errors.not_there(self.kind, self.address)
        builder = slatedb.DbReaderBuilder(self._path, objects)
        builder.with_reader_mode(slatedb.ReaderMode.FOLLOW_LATEST())
        builder.with_options(_SNAPSHOT_READER)
        return wait_for(builder.build(), PATIENCE)

    def _usable(self) -> Any:
        if self._db is None:
            raise errors.closed(self.kind, self.address)
        return self._db

    def _rows(self, rows: Any, prefix: int, limit: int | None) -> Iterator[Row]:
        left = limit
        while left is None or left > 0:
            some = self._ask(rows.next_batch(_PAGE if left is None else min(_PAGE, left)))
            if not some:
                return
            for row in some:
                yield bytes(row.key)[prefix:], bytes(row.value)
                self.check_open()  # closed meanwhile, or this is a forked child
            left = None if left is None else left - len(some)

    def _ask(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return wait_for(work, PATIENCE)
        except _FAILURES as error:
            raise _explained(error, self.kind, self.address) from error

    async def _get(self, database: Any, key: bytes) -> bytes | None:
        found: bytes | None = await database.get(key)
        return found

    async def _get_many(self, database: Any, keys: list[bytes]) -> list[bytes | None]:
        return [await database.get(key) for key in keys]

    async def _scan(self, database: Any, wanted: Any) -> Any:
        return await database.scan(wanted)


class SlatedbStore(SlatedbReader):
    """A database under a path in a bucket, opened for writing.

    Guarantees: when a commit returns, it is in the object storage. Of several processes, only the one that opened the
    database last can write.
    Does not guarantee: that a fenced process which only reads notices it at once, nor durability on `file://`, where
    nothing is synced.
    """

    writers: Writers = "fencing"
    durability = "each commit is in the object storage before it returns"

    def __init__(self, url: str, schema: Schema, mode: Mode = "exclusive", *, limit: int = MAX_TRANSACTION) -> None:
        self.max_transaction = limit
        self.turn = Turn()
        self._is_lost: str | None = None
        self._is_fenced = False
        self._moment: Any = None
        """A snapshot of the last commit, taken when no write was under way, so that everything in it is durable."""
        super().__init__(url, schema)

    def begin(self) -> BufferedTransaction:
        self.check_open()
        return BufferedTransaction(self)

    def apply(self, batch: WriteBatch) -> None:
        """Write one batch and wait until it is durable."""
        database, writes = self._usable(), slatedb.WriteBatch()
        for space, changes in batch.items():
            prefix = self._prefixes[space]
            for key, value in changes.items():
                if value is None:
                    writes.delete(prefix + key)
                else:
                    writes.put(prefix + key, value)
        try:
            with step("slatedb.write"):
                handle = wait_for(database.write(writes), PATIENCE)
            with step("slatedb.durable"):
                self._moment = wait_for(_made_durable(database, handle), PATIENCE)
        except BaseException as error:
            self._is_lost = str(error) or type(error).__name__
            if isinstance(error, _FAILURES):
                found = _of_commit(error, self.kind, self.address)
                self._is_fenced = isinstance(found, Fenced)
                raise found from error
            raise

    def forget_in_child(self) -> None:
        super().forget_in_child()
        forks.leak(self._moment)

    def _opened(self) -> Any:
        if self._root.startswith("file:"):
            log.warning("%s: SlateDB does not sync local files; a power cut may lose what was committed", self.address)
        builder = slatedb.DbBuilder(self._path, slatedb.ObjectStore.resolve(self._root))
        with step("slatedb.open"):
            database = wait_for(builder.build(), PATIENCE)
        self._moment = wait_for(database.snapshot(), PATIENCE)
        return database

    def _usable(self) -> Any:
        database = super()._usable()
        if self._is_fenced:  # the database's own status may lag behind
            raise _fenced(self.kind, self.address)
        if self._is_lost is not None and database.status().close_reason is None:
            raise _lost(self.kind, self.address, self._is_lost)
        return database

    async def _get(self, database: Any, key: bytes) -> bytes | None:
        return await super()._get(self._moment, key)

    async def _get_many(self, database: Any, keys: list[bytes]) -> list[bytes | None]:
        moment, found = self._moment, list[bytes | None]()
        for start in range(0, len(keys), _AT_ONCE):
            found += await asyncio.gather(*[moment.get(key) for key in keys[start : start + _AT_ONCE]])
        return found

    async def _scan(self, database: Any, wanted: Any) -> Any:
        return await self._moment.scan_with_options(wanted, _READ_AHEAD)


async def _made_durable(database: Any, handle: Any) -> Any:
    """Wait until the write is durable, and return a snapshot that includes it."""
    await database.flush()
    await handle.await_durable()
    return await database.snapshot()


def _location(url: str) -> tuple[str, str, str]:
    """The root that SlateDB resolves, the path below it, and the address for messages."""
    if scheme_of(url) == "file":
        path = kv_path(url).strip("/")
        return "file:///", path, f"file:///{path}"
    scheme, bucket, path = remote_parts(url)
    path = path.strip("/")
    if not bucket or not path:
        raise Invalid(
            f"{without_secrets(url)} does not name a path in a bucket.",
            code="address.refused",
            about=without_secrets(url),
            unchanged="everything",
            next_step="write s3://bucket/path",
        )
    root = f"{scheme}://{bucket}"
    return root, path, f"{root}/{path}"


# SlateDB's errors as `HoldfastError`s.


def _explained(error: BaseException, kind: Kind, address: str) -> HoldfastError:
    if isinstance(error, slatedb.Error.Closed) and error.reason == slatedb.CloseReason.FENCED:
        return _fenced(kind, address)
    if isinstance(error, slatedb.Error.Closed) and error.reason == slatedb.CloseReason.CLEAN:
        return errors.closed(kind, address)
    if isinstance(error, slatedb.Error.Data):
        return Corrupt(
            f"{address} is damaged: {error.message}.",
            code=f"{kind}.database",
            about=address,
            unchanged=f"the {kind}",
            next_step="restore it from a copy",
        )
    if isinstance(error, slatedb.Error.Invalid):
        return Invalid(f"{address}: SlateDB refuses: {error.message}.", code=f"{kind}.refused", about=address)
    return Unavailable(
        f"{address}: SlateDB says: {_words(error)}.",
        code=f"{kind}.unavailable",
        about=address,
        unchanged="what was committed before",
        next_step="check that the object storage answers and allows access, then try again",
    )


def _fenced(kind: Kind, address: str) -> Fenced:
    return Fenced(
        f"{address} was opened by another process meanwhile.",
        code=f"{kind}.fenced",
        about=address,
        unchanged=f"the {kind}",
        next_step="stop here: the other process has it now",
    )


def _of_commit(error: BaseException, kind: Kind, address: str) -> HoldfastError:
    """The error for a commit that SlateDB may have accepted, but did not report durable."""
    found = _explained(error, kind, address)
    if isinstance(found, Fenced) or isinstance(error, slatedb.Error.Invalid):
        return found
    what = "its checkpoints" if kind == "index" else "the stream's version or the projection's position"
    return OutcomeUnknown(
        f"{address}: SlateDB did not report a commit as durable: {_words(error)}.",
        code=f"{kind}.commit-unknown",
        about=address,
        unchanged="what was committed before",
        next_step=f"open the {kind} again and read {what}",
    )


def _lost(kind: Kind, address: str, why: str) -> Unavailable:
    return Unavailable(
        f"{address}: it is not known whether an earlier commit is durable ({why}).",
        code=f"{kind}.lost",
        about=address,
        unchanged=f"the {kind}",
        next_step=f"open the {kind} again",
    )


def _words(error: BaseException) -> str:
    return str(getattr(error, "message", "") or ("no answer in time" if isinstance(error, TimeoutError) else error))


# SlateDB's library is async only: one event loop in one thread of this process runs its calls.

_loop_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def wait_for(work: Coroutine[Any, Any, _T], timeout: float) -> _T:
    """Run a coroutine on the event loop thread and wait. After `timeout` seconds cancel it and raise `TimeoutError`."""
    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), _event_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _event_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="holdfast-slatedb", daemon=True).start()
        return _loop


@forks.in_child
def _forget_loop() -> None:
    """A forked child has no thread that runs the loop."""
    global _loop, _loop_lock
    _loop, _loop_lock = None, threading.Lock()
