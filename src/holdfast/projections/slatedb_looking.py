"""Looking into a store in SlateDB: a reader that fences nobody and writes nothing, not even a checkpoint.

SlateDB's readers usually pin what they read by a checkpoint in the database's manifest. This one does not: it is meant
for looks that last less than the minutes after which SlateDB removes files that nobody needs any more.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from slatedb.uniffi import AdminBuilder, DbReaderBuilder, KeyRange, ObjectStore, ReaderMode, ReaderOptions

from holdfast.projections import slatedb_errors
from holdfast.projections.backend import Row, Space
from holdfast.projections.bridge import wait_for
from holdfast.projections.keys import PREFIXES, end_of
from holdfast.projections.looking import not_there
from holdfast.projections.pending import closed, no_sql
from holdfast.projections.slatedb import PATIENCE

_PAGE = 5000
_DAY_MS = 86_400_000
# A reader that polled would see another moment with each read.
_OF_ONE_MOMENT = ReaderOptions(
    manifest_poll_interval_ms=_DAY_MS,
    checkpoint_lifetime_ms=2 * _DAY_MS,
    max_memtable_bytes=64 << 20,
    skip_wal_replay=False,
)
_T = TypeVar("_T")


class SlatedbLooker:
    """A database as it was when this was opened."""

    is_persistent = True
    has_sql = False

    def __init__(self, root: str, path: str) -> None:
        self.address = f"{root.rstrip('/')}/{path}" if not root.startswith("file:") else f"file:///{path}"
        self._reader: Any = None
        try:
            objects = ObjectStore.resolve(root)
        except slatedb_errors.SlatedbError as error:
            raise slatedb_errors.explained(error, self.address) from error
        # Asked first: a reader says the same of a database that is not there and of one that is damaged.
        if self._ask(AdminBuilder(path, objects).build().read_manifest(None)) is None:
            raise not_there(self.address)
        builder = DbReaderBuilder(path, objects)
        builder.with_reader_mode(ReaderMode.FOLLOW_LATEST())
        builder.with_options(_OF_ONE_MOMENT)
        self._reader = self._ask(builder.build())

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._ask(_read(self._usable(), [PREFIXES[space] + key for key in keys]))

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        prefix = PREFIXES[space]
        last = end_of(prefix) if end is None else prefix + end
        rows = self._ask(_scan(self._usable(), prefix + start, last, limit))
        return [(key[len(prefix) :], value) for key, value in rows]

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        raise no_sql(self.address)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._ask(reader.shutdown())

    def _ask(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return wait_for(work, PATIENCE)
        except slatedb_errors.FAILURES as error:
            raise slatedb_errors.explained(error, self.address) from error

    def _usable(self) -> Any:
        if self._reader is None:
            raise closed(self.address)
        return self._reader


async def _read(reader: Any, keys: list[bytes]) -> list[bytes | None]:
    return [await reader.get(key) for key in keys]


async def _scan(reader: Any, start: bytes, end: bytes | None, limit: int | None) -> list[Row]:
    if end is not None and start >= end:
        return []
    iterator = await reader.scan(KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False))
    rows: list[Row] = []
    while limit is None or len(rows) < limit:
        some = await iterator.next_batch(_PAGE if limit is None else min(_PAGE, limit - len(rows)))
        if not some:
            break
        rows += [(bytes(row.key), bytes(row.value)) for row in some]
    return rows
