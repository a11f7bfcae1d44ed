"""A projection on an executor: each group of events is handled in its order, independently of the others.

Nothing is written here: the handlers' reads and writes are reported to the driver, which commits all of them or none.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.arguments import MAX_KEY_BYTES, check_key, check_prefix
from holdfast.base.codec import msgpack_decoder
from holdfast.errors import Conflict, HoldfastError, Invalid
from holdfast.projections import cursors, retry, state
from holdfast.projections.batch import error_text, is_store_error
from holdfast.projections.event import Event
from holdfast.projections.projection import OnError, ProjectionLike
from holdfast.projections.spark.events import decode_record
from holdfast.projections.spark.merge import Failed, Fault, GroupResult, StreamRange, encode_part, fault
from holdfast.projections.state import BuildRef, ProjectionState
from holdfast.projections.store import ProjectionStore, open_projections
from holdfast.projections.view import StoredView
from holdfast.storage.kv.store import Reader, Row, Transaction, end_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PART_SPANS = 10_000
PART_BYTES = 8 << 20
TRACE = 10_000


class Task(msgspec.Struct, frozen=True):
    """Everything that the driver sends to an executor."""

    url: str
    projection: ProjectionLike
    ref: BuildRef
    known: ProjectionState | None
    build: int
    on_error: OnError


Mapped = Callable[[Iterator["RecordBatch"]], Iterator["RecordBatch"]]


def grouping(projection: Any) -> Mapped:
    """Prefix each record with the projection's key. If `key()` fails, the record holds the error instead."""
    # Spark pickles only this small lambda; `_with_keys` is imported on the executor.
    return lambda batches: _with_keys(projection, batches)


def handling(task: Task) -> Mapped:
    """Handle events sorted by group and position, and yield encoded `GroupResult`s."""
    return lambda batches: _encoded(_parts(task, batches))


def _with_keys(projection: Any, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    import pyarrow

    for batch in batches:
        groups: list[bytes | None] = []
        found: list[bytes] = []
        given: list[Any] = batch.column("record").to_pylist()
        for record in given:
            group = _group(projection.key, decode_record(record), projection.name)
            is_fault = isinstance(group, Fault)
            groups.append(None if is_fault else group)
            found.append(encode_part(group) if is_fault else record)
        columns = [
            pyarrow.array(groups, pyarrow.binary()),
            batch.column("position"),
            pyarrow.array(found, pyarrow.binary()),
        ]
        yield pyarrow.record_batch(columns, names=["grouped_by", "position", "record"])


def _group(key_of: Callable[[Event], Any], event: Event, name: str) -> Any:
    try:
        found = key_of(event)
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, bytes):
            return found
        why = f"it is {type(found).__name__}, not text or bytes"
    except Exception as error:
        why = error_text(error)
    return fault(
        Invalid(
            f"Projection {name[:200]!r} has no key for event {event.sequence} of stream {event.stream[:200]!r} "
            f"({event.type}, position {event.position}): {why}.",
            code="projection.key",
            about=f"projection {name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="return text or bytes from key(event) for every event",
        )
    )


def _encoded(parts: Iterator[GroupResult]) -> Iterator[RecordBatch]:
    import pyarrow

    for part in parts:
        yield pyarrow.record_batch([pyarrow.array([encode_part(part)], pyarrow.binary())], names=["part"])


def _parts(task: Task, batches: Iterator[RecordBatch]) -> Iterator[GroupResult]:
    try:
        with open_projections(task.url, read_only=True) as store:
            if state.read(store.kv, task.ref.key, store.address) != task.known:
                raise Conflict(f"Projection {task.ref.name[:200]!r} was changed meanwhile.", code="projection.changed")
            yield from GroupExecutor(task, store).run(batches)
    except HoldfastError as error:
        yield GroupResult(faults=[fault(error)])
    for _ in batches:  # Spark requires that the input is consumed
        pass


class GroupExecutor:
    """Handles the groups of one partition, one after the other."""

    def __init__(self, task: Task, store: ProjectionStore) -> None:
        self._task = task
        self._store = store
        self._view = GroupView(store.kv, task.ref.escaped, task.build)
        self._group: bytes | None = None
        self._has_failed = False
        ref = task.ref
        self._has_cursors = any(store.kv.scan(ref.space, ref.prefix, end_of(ref.prefix), 1))
        self._handle = task.projection.handle
        self._first: dict[str, tuple[int, Event]] = {}
        """For each stream of the group: its cursor, and the first event after the cursor."""
        self._last: dict[str, int] = {}
        self._handled = 0
        self._part = GroupResult()
        self._size = 0

    def run(self, batches: Iterator[RecordBatch]) -> Iterator[GroupResult]:
        for batch in batches:
            groups: list[Any] = batch.column("grouped_by").to_pylist()
            found: list[Any] = batch.column("record").to_pylist()
            if batch.column("grouped_by").null_count:
                raise msgpack_decoder(Fault).decode(found[groups.index(None)]).error()
            events = [decode_record(record) for record in found]
            cursor_of = self._cursors({event.stream for event in events})
            seen = {
                event.stream: cursor_of[event.stream] for event in events if event.sequence <= cursor_of[event.stream]
            }
            cursors.check_were_seen(self._store.log, self._task.ref, seen)
            for group, event, record in zip(groups, events, found, strict=True):
                if group != self._group:
                    self._end_group()
                    self._group = group
                    if len(self._part.spans) >= PART_SPANS or self._size >= PART_BYTES:
                        yield self._flush()
                self._event(event, record, cursor_of[event.stream])
        self._end_group()
        yield self._flush()

    def _cursors(self, streams: set[str]) -> dict[str, int]:
        if not self._has_cursors:
            return dict.fromkeys(streams, 0)
        return cursors.read_some(self._store.kv, self._task.ref, list(streams), self._store.address)

    def _event(self, event: Event, record: bytes, cursor: int) -> None:
        """Handle one event, and apply `on_error` if it fails. A failed event leaves nothing in the view."""
        if event.sequence <= cursor or self._has_failed:
            return
        self._last[event.stream] = event.sequence
        if event.stream not in self._first:
            self._first[event.stream] = cursor, event
        error = self._try(event)
        if error is None:
            self._handled += 1
        else:
            self._failed(event, record, error)

    def _try(self, event: Event) -> Exception | None:
        """None on success, else the exception."""
        view = self._view
        raised: Exception | None = None
        try:
            self._handle(event, view)
            view.accept()
        except Exception as error:
            if is_store_error(error):
                raise
            view.undo()
            raised = error
        if view.refusal is not None:
            raise view.refusal
        return raised

    def _failed(self, event: Event, record: bytes, error: Exception) -> None:
        """Put the event aside, or end the group at it. The driver counts attempts and waits; an executor never does."""
        known, policy = self._task.known, self._task.on_error
        attempts = retry.attempts_at(event.position, None if known is None else known.failed)
        trace = "".join(traceback.format_exception(error))[-TRACE:]
        failed = Failed(record, error_text(error), attempts, trace)
        if retry.decide(policy, attempts) == "dead-letter":
            self._part.letters.append(failed)
        else:
            self._part.failed.append(failed)
            self._has_failed = True

    def _end_group(self) -> None:
        if self._group is None:
            return
        self._size += self._view.report(self._group, self._part)
        self._part.spans.extend(
            StreamRange(stream, cursor, event.sequence, self._last[stream], event.position)
            for stream, (cursor, event) in self._first.items()
        )
        self._first.clear()
        self._last.clear()
        self._has_failed = False

    def _flush(self) -> GroupResult:
        part = msgspec.structs.replace(self._part, handled=self._handled)
        self._part, self._handled, self._size = GroupResult(), 0, 0
        return part


class GroupView(StoredView):
    """The committed read model plus this group's writes. Records the keys it read and wrote."""

    def __init__(self, kv: Reader, name: bytes, build: int) -> None:
        super().__init__(kv, name, build, self._no_transaction)
        # During the first build, or a rebuild, there is nothing to read. If another runner commits meanwhile, the
        # projection's state has changed and nothing of this batch is committed.
        self._is_empty = not any(kv.scan("views", self._prefix, end_of(self._prefix), 1))
        self._read: set[bytes] = set()
        self._scanned: set[bytes] = set()
        self.refusal: Invalid | None = None
        """Why the projection cannot run on executors. Raised even if the handler catches the exception."""

    def get(self, key: bytes) -> bytes | None:
        if type(key) is not bytes or not 0 < len(key) <= MAX_KEY_BYTES:
            key = check_key(key)
        if key in self._written:
            return self._written[key]
        self._read.add(key)
        if self._is_empty:
            return None
        return self._kv.get("views", self._prefix + key)

    def scan(self, prefix: bytes = b"") -> Iterator[Row]:
        self._scanned.add(check_prefix(prefix))
        return super().scan(prefix)

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        raise self._refused()

    def table(self, name: str) -> str:
        raise self._refused()

    def report(self, group: bytes, part: GroupResult) -> int:
        """Move this group's reads and writes into `part`; returns their size. Leaves the view empty."""
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
