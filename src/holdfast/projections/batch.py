"""One batch of a catch-up: handle events, then commit read model, cursors and state in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, Fenced, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.projections import cursors, keys, state
from holdfast.projections.event import Event
from holdfast.projections.event_log import EventLog
from holdfast.projections.projection import ProjectionLike, streams_of
from holdfast.projections.state import BuildRef, DeadLetter, FailedEvent, ProjectionState
from holdfast.projections.view import StoredView
from holdfast.projections.worker_lease import WorkerLease
from holdfast.storage.kv.store import Reader, Transaction, WriteBatch

SEARCHED = 20_000
"""Events of other streams to read in one batch, in search of the first event of a projection with a prefix."""
_STORE_ERRORS = (Conflict, Corrupt, Fenced, OutcomeUnknown, Unavailable)
DENIED = "store.denied"
"""The code of the error for a right that was revoked: every event fails then, and none is to blame."""


class Failure(msgspec.Struct, frozen=True):
    """One event whose handler raised."""

    event: Event
    why: str
    attempts: int
    error: Exception | None = None
    """The exception itself, if there is one."""


class BatchResult(msgspec.Struct, frozen=True):
    """The result of a batch."""

    state: ProjectionState
    is_committed: bool
    handled: int = 0
    streams: int = 0
    failure: Failure | None = None
    """Set if a handler failed. Its event follows the last committed one."""
    dead_lettered: int = 0


class BatchProcessor(Protocol):
    """Handles and commits the log of one projection, one batch at a time."""

    def run(
        self,
        known: ProjectionState | None,
        current: ProjectionState,
        *,
        limit: int,
        until: int | None,
        now_ms: int,
        given_up: Mapping[int, Failure],
    ) -> BatchResult | None:
        """Handle up to `limit` events that follow `current`; None if there are none.

        `known` is the stored state. The events in `given_up` are recorded as dead letters and not handled. A processor
        that asks `retry.decide` itself is given none, and reports no failure that became a dead letter.
        """


class RetryPrefix(msgspec.Struct, frozen=True):
    """A handler failed after running SQL, so the whole transaction was rolled back. Retry the events before it."""

    events: int
    """How many events to retry, counted from the first of the batch."""
    failure: Failure | None = None


class ProjectionCommit:
    """The transaction of a batch. It begins at the first use. `Conflict` if the projection's state is not `known`."""

    def __init__(self, kv: Reader, ref: BuildRef, known: ProjectionState | None, lease: WorkerLease | None) -> None:
        self._kv = kv
        self._ref = ref
        self._known = known
        self._lease = lease
        self._transaction: Transaction | None = None

    def begin(self) -> Transaction:
        if self._transaction is None:
            transaction = state.begin(self._kv)
            try:
                state.check_unchanged(transaction, self._ref, self._known, self._kv.address)
                if self._lease is not None:
                    self._lease.check(transaction)
            except BaseException:
                transaction.rollback()
                raise
            self._transaction = transaction
        return self._transaction

    def commit(self, batch: WriteBatch) -> None:
        with step("projection.commit"):
            transaction = self.begin()
            transaction.write(batch)
            transaction.commit()

    def write_state(self, new: ProjectionState) -> None:
        """Commit a new state, and nothing else."""
        try:
            self.commit({"meta": {self._ref.key: keys.seal(self._ref.key, new)}})
        finally:
            self.rollback()

    def rollback(self) -> None:
        if self._transaction is not None:
            self._transaction.rollback()


class LocalBatches:
    """Handles batches in this process."""

    def __init__(
        self, kv: Reader, log: EventLog, projection: ProjectionLike, ref: BuildRef, lease: WorkerLease | None
    ) -> None:
        self._kv = kv
        self._log = log
        self._projection = projection
        self._ref = ref
        self._lease = lease

    def run(
        self,
        known: ProjectionState | None,
        current: ProjectionState,
        *,
        limit: int,
        until: int | None,
        now_ms: int,
        given_up: Mapping[int, Failure],
    ) -> BatchResult | None:
        start = first_position(self._kv, self._log, self._ref, current, streams_of(self._projection))
        events, position = self._events(start, limit, until)
        # Finding this position read every stream's cursor, so store it even if no event follows.
        if position == start and (current.position is not None or start == 0):
            return None
        batch: BatchResult | RetryPrefix = RetryPrefix(len(events))
        while isinstance(batch, RetryPrefix):
            batch = self._attempt(events, batch.events, position, known, current, now_ms, given_up, batch.failure)
        return batch

    def _attempt(
        self,
        events: list[Event],
        most: int,
        position: int,
        known: ProjectionState | None,
        current: ProjectionState,
        now_ms: int,
        given_up: Mapping[int, Failure],
        failure: Failure | None,
    ) -> BatchResult | RetryPrefix:
        """Handle and commit the first `most` events. `failure` is the known failure of the next one, if any."""
        events = events[:most]
        # Sorted, so that a B-tree is walked in the order of its pages.
        before = cursors.read_some(self._kv, self._ref, sorted({event.stream for event in events}), self._kv.address)
        commit = ProjectionCommit(self._kv, self._ref, known, self._lease)
        view = StoredView(self._kv, self._ref.escaped, current.build, commit.begin)
        try:
            handled, changed, letters, skipped, failed_now = self._handle(events, before, view, given_up)
            if skipped:
                cursors.check_were_seen(self._log, self._ref, skipped)
            if failed_now is not None and view.has_run_sql:
                return RetryPrefix(events.index(failed_now.event), failed_now)
            failure = failed_now or failure
            if failure is not None:
                position = failure.event.position - 1
                if not changed:
                    return BatchResult(current, False, failure=failure)
            new = moved(current, self._projection.version, position, now_ms)
            commit.commit(writes(self._ref, new, view.writes(), changed, letters))
        finally:
            commit.rollback()
        return BatchResult(new, True, handled, len(changed), failure, len(letters))

    def _events(self, position: int, limit: int, until: int | None) -> tuple[list[Event], int]:
        """The next events for this projection, and the position up to which the log has been read for them.

        After `SEARCHED` events of other streams the search ends without a result. The commit then moves the position:
        the lease is renewed, and a crash does not lose the search.
        """
        prefix = streams_of(self._projection)
        start = position
        while True:
            most = limit if until is None else min(limit, until - position)
            page = self._log.page(position, most) if most > 0 else []
            if not page:
                return [], position
            position = page[-1].position
            wanted = [event for event in page if event.stream.startswith(prefix)] if prefix else page
            if wanted or position - start >= SEARCHED:
                return wanted, position

    def _handle(
        self, events: list[Event], cursor_of: dict[str, int], view: StoredView, given_up: Mapping[int, Failure]
    ) -> tuple[int, dict[str, int], list[Failure], dict[str, int], Failure | None]:
        """Returns how many events were handled, the new cursors, the dead letters, the cursors of streams with events
        that were skipped, and the failure that ended it."""
        handle, accept = self._projection.handle, view.accept
        changed: dict[str, int] = {}
        skipped: dict[str, int] = {}
        letters: list[Failure] = []
        handled = 0
        for event in events:
            stream = event.stream
            cursor = cursor_of[stream]
            if event.sequence != cursor + 1:
                if event.sequence > cursor:
                    raise cursors.gap(self._ref, event.stream, cursor, event.sequence)
                skipped[stream] = cursor
                continue
            if event.position in given_up:
                letters.append(given_up[event.position])
            else:
                try:
                    handle(event, view)
                    accept()
                except Exception as error:
                    if is_store_error(error):
                        raise
                    view.undo()
                    return handled, changed, letters, skipped, Failure(event, error_text(error), 1, error)
                handled += 1
            cursor_of[stream] = changed[stream] = event.sequence
        return handled, changed, letters, skipped, None


def writes(
    ref: BuildRef,
    new: ProjectionState,
    view: dict[bytes, bytes | None],
    reached: dict[str, int],
    failures: Iterable[Failure],
) -> WriteBatch:
    """Everything that one commit of a projection writes: cursors, read model, dead letters and state."""
    of_build = keys.of_build(ref.escaped, new.build)
    letters: dict[bytes, bytes | None] = {}
    for failure in failures:
        key = of_build + keys.NUMBER.pack(failure.event.position)
        letters[key] = keys.seal(key, _letter(failure, new.updated_ms))
    return {
        ref.space: cursors.writes(ref, reached),
        "views": view,
        "letters": letters,
        "meta": {ref.key: keys.seal(ref.key, new)},
    }


def moved(
    current: ProjectionState, version: int, position: int, now_ms: int, failed: FailedEvent | None = None
) -> ProjectionState:
    """The state of the projection after a commit up to this position. `failed` is the next event, if it has failed."""
    return msgspec.structs.replace(
        current,
        version=version,
        position=position,
        revision=current.revision + 1,
        updated_ms=now_ms,
        failed=failed,
    )


def is_store_error(error: Exception) -> bool:
    """Whether the store beneath the handler failed. `OnError`, the policy for events that fail, does not apply then."""
    return isinstance(error, _STORE_ERRORS) or (isinstance(error, HoldfastError) and error.code == DENIED)


def error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def record_text(why: str) -> str:
    """Cut an error text to what fits into a record, as valid UTF-8."""
    return why[:4096].encode(errors="backslashreplace").decode()


def first_position(kv: Reader, log: EventLog, ref: BuildRef, current: ProjectionState, prefix: str) -> int:
    """The position after which the next batch begins."""
    return current.position if current.position is not None else resume_position(kv, log, ref, prefix)


def next_positions(
    kv: Reader, log: EventLog, ref: BuildRef, current: ProjectionState, prefix: str, limit: int, until: int | None
) -> tuple[int, int] | None:
    """The position after which the next batch begins, and its last position; None if there is nothing to do."""
    start = first_position(kv, log, ref, current, prefix)
    last = min(start + limit, log.head(), start + limit if until is None else until)
    if last > start:
        return start, last
    # Finding this position read every stream's cursor, so store it even if no event follows.
    return None if current.position is not None or start == 0 else (start, start)


def resume_position(kv: Reader, log: EventLog, ref: BuildRef, prefix: str) -> int:
    """The last position up to which the cursors say that every event was handled. Looks at every stream."""
    lowest = log.head()
    known = dict(cursors.read_all(kv, ref, kv.address))
    if not known:
        return 0  # the first catch-up: searching for its first event would gain nothing
    for page in log.versions():
        behind = []
        for name, version in page:
            stream = name.decode()
            cursor = known.get(stream, 0)
            if cursor < version and stream.startswith(prefix):
                behind.append((name, cursor + 1))
        lowest = min([lowest, *(position - 1 for position in log.positions_of(behind))])
    return lowest


def _letter(failure: Failure, now_ms: int) -> DeadLetter:
    event = failure.event
    why = record_text(failure.why)
    return DeadLetter(event.position, event.stream, event.sequence, event.type, why, failure.attempts, now_ms)
