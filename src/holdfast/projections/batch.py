"""One batch of a catch-up: events handled, and read model, cursors and standing committed in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.errors import Conflict, Corrupt, Fenced, Invalid, OutcomeUnknown, Unavailable
from holdfast.projections import cursors, keys, records, standing
from holdfast.projections.backend import Backend, Change, Transaction
from holdfast.projections.event import Event
from holdfast.projections.leases import Hold
from holdfast.projections.log import EventLog
from holdfast.projections.projection import Handles, streams_of
from holdfast.projections.standing import DeadLetter, Standing, Track
from holdfast.projections.view import StoredView
from holdfast.steps import step

NOT_THE_EVENTS_FAULT = (Conflict, Corrupt, Fenced, OutcomeUnknown, Unavailable)
"""Raised by the store beneath the handler: no policy for events applies to them."""


class Failure(msgspec.Struct, frozen=True):
    """A handler raised."""

    event: Event
    error: Exception
    attempts: int


class Batch(msgspec.Struct, frozen=True):
    """What became of a batch."""

    standing: Standing
    is_committed: bool
    handled: int = 0
    streams: int = 0
    failure: Failure | None = None
    """The event after the last one that is committed."""


class Redo(msgspec.Struct, frozen=True):
    """A handler failed after it had changed tables, which only the whole transaction can undo: do the others again."""

    events: int
    """How many of the batch, from its first."""
    failure: Failure | None = None


class Unit:
    """The transaction of a batch: begun when first needed, and only if the projection still stands where it did."""

    def __init__(self, backend: Backend, track: Track, known: Standing | None, lease: Hold | None) -> None:
        self._backend = backend
        self._track = track
        self._known = known
        self._lease = lease
        self._transaction: Transaction | None = None

    def begin(self) -> Transaction:
        if self._transaction is None:
            transaction = self._backend.begin()
            try:
                standing.check_unchanged(transaction, self._track, self._known, self._backend.address)
                if self._lease is not None:
                    self._lease.check(transaction)
            except BaseException:
                transaction.rollback()
                raise
            self._transaction = transaction
        return self._transaction

    def commit(self, changes: Iterable[Change]) -> None:
        with step("projection.commit"):
            transaction = self.begin()
            transaction.write(changes)
            transaction.commit()

    def rollback(self) -> None:
        if self._transaction is not None:
            self._transaction.rollback()


class Batches:
    """Works through the log for one projection, from one standing to the next."""

    def __init__(self, backend: Backend, log: EventLog, projection: Handles, track: Track, lease: Hold | None) -> None:
        self._backend = backend
        self._log = log
        self._projection = projection
        self._track = track
        self._lease = lease

    def run(
        self,
        known: Standing | None,
        current: Standing,
        *,
        limit: int,
        until: int | None,
        now_ms: int,
        given_up: Mapping[int, Failure],
    ) -> Batch | None:
        """Handle up to `limit` events that follow `current`; None if there are none.

        `known` is what is stored. The events in `given_up` are recorded as dead letters and not handled.
        """
        start = current.position
        if start is None:
            start = resume_position(self._backend, self._log, self._track, streams_of(self._projection))
        events, position = self._events(start, limit, until)
        # A position that took a look at every stream is kept even if nothing follows it.
        if position == start and (current.position is not None or start == 0):
            return None
        batch: Batch | Redo = Redo(len(events))
        while isinstance(batch, Redo):
            batch = self._attempt(events, batch.events, position, known, current, now_ms, given_up, batch.failure)
        return batch

    def _attempt(
        self,
        events: list[Event],
        most: int,
        position: int,
        known: Standing | None,
        current: Standing,
        now_ms: int,
        given_up: Mapping[int, Failure],
        failure: Failure | None,
    ) -> Batch | Redo:
        """Handle the first `most` of the events and commit; the one after them is known to fail, if there is one."""
        events = events[:most]
        before = cursors.read_some(
            self._backend, self._track, list({event.stream for event in events}), self._backend.address
        )
        unit = Unit(self._backend, self._track, known, self._lease)
        view = StoredView(self._backend, self._track.escaped, current.build, unit.begin)
        try:
            handled, changed, letters, failed_now = self._handle(events, before, view, given_up)
            if failed_now is not None and view.has_run_sql:
                return Redo(events.index(failed_now.event), failed_now)
            failure = failed_now or failure
            if failure is not None:
                position = failure.event.position - 1
                if not changed:
                    return Batch(current, False, failure=failure)
            new = msgspec.structs.replace(
                current,
                version=self._projection.version,
                position=position,
                revision=current.revision + 1,
                updated_ms=now_ms,
            )
            unit.commit(self._changes(new, view, changed, [_letter(letter, now_ms) for letter in letters]))
        finally:
            unit.rollback()
        return Batch(new, True, handled, len(changed), failure)

    def _events(self, position: int, limit: int, until: int | None) -> tuple[list[Event], int]:
        """The next events for this projection, and the position up to which there are no others."""
        prefix = streams_of(self._projection)
        while True:
            most = limit if until is None else min(limit, until - position)
            page = self._log.page(position, most) if most > 0 else []
            if not page:
                return [], position
            position = page[-1].position
            wanted = [event for event in page if event.stream.startswith(prefix)] if prefix else page
            if wanted:
                return wanted, position

    def _handle(
        self, events: list[Event], cursor_of: dict[str, int], view: StoredView, given_up: Mapping[int, Failure]
    ) -> tuple[int, dict[str, int], list[Failure], Failure | None]:
        handle, keep = self._projection.handle, view.keep
        changed: dict[str, int] = {}
        letters: list[Failure] = []
        handled = 0
        for event in events:
            stream = event.stream
            cursor = cursor_of[stream]
            if event.sequence != cursor + 1:
                if event.sequence > cursor:
                    raise self._gap(event, cursor)
                self._check_was_seen(event, cursor)
                continue
            if event.position in given_up:
                letters.append(given_up[event.position])
            else:
                try:
                    handle(event, view)
                    keep()
                except NOT_THE_EVENTS_FAULT:
                    raise
                except Exception as error:
                    view.undo()
                    return handled, changed, letters, Failure(event, error, 1)
                handled += 1
            cursor_of[stream] = changed[stream] = event.sequence
        return handled, changed, letters, None

    def _changes(
        self, new: Standing, view: StoredView, changed: dict[str, int], letters: list[DeadLetter]
    ) -> Iterator[Change]:
        yield from cursors.changes(self._track, changed)
        yield from view.changes()
        for letter in letters:
            key = keys.of_build(self._track.escaped, new.build) + keys.NUMBER.pack(letter.position)
            yield "letters", key, records.seal(key, letter)
        yield "meta", self._track.key, records.seal(self._track.key, new)

    def _check_was_seen(self, event: Event, cursor: int) -> None:
        """An event at or before the cursor is in the read model already, if the stream ever went as far."""
        version = self._log.version(event.stream)
        if version < cursor:
            raise self._astray(
                f"its cursor for stream {event.stream[:200]!r} is at {cursor}, and the stream has {version} events",
                "cursor.ahead",
            )

    def _gap(self, event: Event, cursor: int) -> Invalid:
        return self._astray(
            f"its cursor for stream {event.stream[:200]!r} is at {cursor}, and the next event that it would be given "
            f"is {event.sequence}, as if it read other streams before",
            "cursor.gap",
        )

    def _astray(self, why: str, code: str) -> Invalid:
        return Invalid(
            f"Projection {self._track.name[:200]!r} cannot go on: {why}.",
            code=code,
            about=f"projection {self._track.name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="rebuild it, or save the checkpoint that its read model has",
        )


def resume_position(backend: Backend, log: EventLog, track: Track, prefix: str) -> int:
    """The last position before which nothing is missing, according to the cursors. Looks at every stream."""
    lowest = log.head()
    known = dict(cursors.read_all(backend, track, backend.address))
    for name, version in log.versions():
        stream = name.decode()
        cursor = known.get(stream, 0)
        if cursor < version and stream.startswith(prefix):
            first = log.first_after(name, cursor)
            if first is not None:
                lowest = min(lowest, first - 1)
    return lowest


def _letter(failure: Failure, now_ms: int) -> DeadLetter:
    event = failure.event
    why = f"{type(failure.error).__name__}: {failure.error}"[:4096].encode(errors="backslashreplace").decode()
    return DeadLetter(event.position, event.stream, event.sequence, event.type, why, failure.attempts, now_ms)
