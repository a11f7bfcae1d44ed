"""A read model as the handlers of one group see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.errors import Invalid
from holdfast.projections import keys
from holdfast.projections.arguments import MAX_KEY_BYTES, check_key, check_prefix
from holdfast.projections.backend import Backend, Row, Transaction
from holdfast.projections.spark.merge import Part
from holdfast.projections.view import StoredView


class GroupView(StoredView):
    """What is committed and what this group has written; and a record of which keys it has read and written."""

    def __init__(self, backend: Backend, name: bytes, build: int) -> None:
        super().__init__(backend, name, build, self._no_transaction)
        # While a projection is made for the first time, or anew, there is nothing to read. Whoever commits meanwhile
        # changes the standing, and then nothing of this is committed.
        self._is_empty = not backend.scan("views", self._prefix, keys.end_of(self._prefix), 1)
        self._read: set[bytes] = set()
        self._scanned: set[bytes] = set()
        self.refusal: Invalid | None = None
        """Why the projection cannot run here, whatever its handler makes of it."""

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes or not 0 < len(key) <= MAX_KEY_BYTES:
            key = check_key(key)
        if key in self._written:
            return self._written[key]
        self._read.add(key)
        if self._is_empty:
            return None
        return self._backend.read("views", [self._prefix + key])[0]

    def scan(self, prefix: bytes = b"") -> Iterator[Row]:
        self._scanned.add(check_prefix(prefix))
        return super().scan(prefix)

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        raise self._refused()

    def table(self, name: str) -> str:
        raise self._refused()

    def report(self, group: bytes, part: Part) -> int:
        """Add what this group has done to a part; its size. The view is then as if nobody had used it."""
        written = self._written
        part.keys.extend(written)
        part.values.extend(written.values())
        part.writers.extend([group] * len(written))
        part.reads.extend((group, key) for key in self._read if key not in written)
        part.scans.extend((group, prefix) for prefix in self._scanned)
        size = sum(len(key) + len(value or b"") for key, value in written.items())
        self._written, self._read, self._scanned = {}, set(), set()
        return size

    def _refused(self) -> Invalid:
        self.refusal = Invalid(
            "The handler uses SQL, which runs in the transaction of its batch, and executors have none.",
            code="projection.sql-on-spark",
            about="the projection's handler",
            unchanged="its read model and its cursors",
            next_step="keep the read model with get, put, delete and scan, or run it in one process with "
            "holdfast.projections.ProjectionRunner",
        )
        return self.refusal

    def _no_transaction(self) -> Transaction:
        raise self._refused()
