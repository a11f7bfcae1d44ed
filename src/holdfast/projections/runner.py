"""Runs projections: over events in hand, over streams, and over the whole store with cursors that last."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.base.arguments import check_number, refused
from holdfast.errors import Conflict, Fenced, Invalid
from holdfast.projections import admin, rebuild, state
from holdfast.projections.batch import BatchProcessor, Failure, LocalBatches
from holdfast.projections.cursors import GlobalProjectionCheckpoint
from holdfast.projections.event import Event
from holdfast.projections.event_log import PAGE
from holdfast.projections.projection import (
    OnError,
    OnVersion,
    ProjectionLike,
    check_kept,
    check_projection,
    check_version,
)
from holdfast.projections.state import BuildRef, DeadLetter, ProjectionState
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import MemoryView, View
from holdfast.projections.worker_lease import WorkerLease

BATCH = 1000
LONGEST_WAIT = 60.0


class CaughtUp(msgspec.Struct, frozen=True):
    """The result of a catch-up."""

    position: int
    """The read model holds everything up to here."""
    handled: int = 0
    cursors: int = 0
    """How many were written."""
    dead_lettered: int = 0
    is_at_the_end: bool = True
    """False if it ended at the limit of `batches`, or because `stop` said so."""


class ProjectionRunner:
    """Runs projections over a store.

        ProjectionRunner(store).catch_up_persistent(Turnover())

    Guarantees of everything persistent: each event is in the read model exactly once, in the order of the log, whatever
    is killed and however many run at the same time. Of two that meet, one commits and the other looks again. An idle
    catch-up asks the backend twice, and one with changes reads and writes what belongs to the streams that changed.
    """

    def __init__(
        self,
        store: ProjectionStore,
        *,
        on_error: OnError | None = None,
        on_version: OnVersion = "fail",
        batch: int = BATCH,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.store = store
        self._on_error = on_error or OnError()
        self._on_version = on_version
        self._batch = check_number("batch", batch, 1, 1_000_000)
        self._sleep = sleep

    def catch_up_persistent(
        self,
        projection: ProjectionLike,
        *,
        until: int | None = None,
        batches: int | None = None,
        lease: WorkerLease | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> CaughtUp:
        """Handle every event since the last time; read model and cursors are committed together, a batch at a time.

        `until` is the last position to handle, `batches` how many commits to make at most; `stop` is asked before each.
        With a `lease`, `Fenced` if another worker has taken it. A handler that raises is dealt with as `on_error` says;
        if that is to stop, all events before are committed, and `Invalid` with the code `projection.handler` is raised
        from what it raised.
        """
        ref = self._checked(projection)
        known, current = self._state(ref, projection)
        if current.garbage:
            rebuild.sweep(self.store.kv, ref)
            known, current = self._state(ref, projection)
        if current.version not in (None, projection.version):
            if self._on_version == "fail":
                check_version(projection, current.version)
            if not self.rebuild(projection, resume=True, lease=lease, stop=stop).is_at_the_end:
                return CaughtUp(current.position or 0, is_at_the_end=False)
            known, current = self._state(ref, projection)
        return self._catch_up(projection, ref, (known, current), until, batches, lease, stop)

    def rebuild(
        self,
        projection: ProjectionLike,
        *,
        until: int | None = None,
        resume: bool = False,
        lease: WorkerLease | None = None,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], object] = lambda _position, _head: None,
    ) -> CaughtUp:
        """Make the read model anew from the first event, beside the live one, and switch over in one step.

        The live one is read and caught up meanwhile. A process that dies leaves it as it was; with `resume` the work
        goes on where it stood, which is right if the handler is the same. `until` makes it as of that position.
        Cursors become those of the new read model. `progress` is called with the position and the last one. If `stop`
        says so before a batch, nothing is switched, and the rebuild can be resumed.
        """
        ref = self._checked(projection)
        if until is not None:
            check_number("until", until)
        next_ref, current = rebuild.start(self.store, ref, projection.version, until, resume)
        handled = 0
        while True:
            where = self._state(next_ref, projection)
            done = self._catch_up(projection, next_ref, where, until, None, lease, stop, progress)
            handled += done.handled
            if not done.is_at_the_end:
                return CaughtUp(done.position, handled, is_at_the_end=False)
            switched = rebuild.switch(self.store, ref, next_ref, current.build, until, lease)
            if switched is not None:
                break
        self.store.notify()
        rebuild.sweep(self.store.kv, ref)
        return CaughtUp(switched.position or 0, handled)

    def rewind(self, projection: ProjectionLike, position: int, *, view: str = "replay") -> CaughtUp:
        """Go back to a position.

        `replay` makes the read model as of that position, exactly, beside the live one. `keep` leaves the read model
        as it is and only moves the cursors back: the events after the position are handled again on top of what they
        have done before, which is right for handlers that overwrite and wrong for those that add.
        """
        ref = self._checked(projection)
        check_number("position", position)
        if view not in ("replay", "keep"):
            raise refused("view", f"replay or keep, not {view!r}")
        if view == "replay":
            return self.rebuild(projection, until=position)
        admin.move_back(self.store, ref, position)
        self.store.notify()
        return CaughtUp(position)

    def reset(self, name: str) -> None:
        """Empty a projection in one step: read model, cursors, dead letters. The next catch-up begins at the start.

        A rebuild under way is abandoned, and its runner is fenced. `NotFound` if there is no such projection.
        """
        admin.reset(self.store, name)

    def retry_dead_letters(self, projection: ProjectionLike) -> list[DeadLetter]:
        """Handle the events again that were put aside; those that fail again stay, and are returned.

        Each one that succeeds goes into the read model in one commit with the removal of its letter. They come after
        events that were handled since: the handler has to bear that. `Invalid` if the read model is of another version.
        """
        return admin.retry_letters(self.store, self._checked(projection), projection)

    # Replays: these write nothing to the store. A handler's error is raised as it is; events before it stay handled.
    # Without a `view` the read model is a new one in memory, of use to projections that keep theirs in themselves.

    def run(self, projection: ProjectionLike, events: Iterable[Event], view: View | None = None) -> View:
        """Handle all of these events; the view they went into."""
        return self.run_all([projection], events, view)

    def run_all(self, projections: Sequence[ProjectionLike], events: Iterable[Event], view: View | None = None) -> View:
        """Handle all of these events with several projections, in one pass."""
        view = MemoryView() if view is None else view
        for projection in projections:
            check_projection(projection)
        for event in events:
            for projection in projections:
                projection.handle(event, view)
        return view

    def catch_up(
        self, projection: ProjectionLike, events: Sequence[Event], after: int = 0, view: View | None = None
    ) -> View:
        """Handle the events of one stream that follow a sequence. They must be in order."""
        check_number("after", after)
        return self.run(projection, events[bisect_right(events, after, key=lambda event: event.sequence) :], view)

    def run_from_store(self, projection: ProjectionLike, stream: str, view: View | None = None) -> int:
        """Handle a stream from its first event; the sequence of the last."""
        return self.catch_up_from_store(projection, stream, 0, view)

    def catch_up_from_store(self, projection: ProjectionLike, stream: str, after: int, view: View | None = None) -> int:
        """Handle the events of a stream that follow a sequence; the sequence of the last."""
        view = MemoryView() if view is None else view
        check_projection(projection)
        for event in self.store.read_stream(stream, after):
            projection.handle(event, view)
            after = event.sequence
        return after

    def run_all_streams(
        self, projection: ProjectionLike, streams: Iterable[str] | None = None, view: View | None = None
    ) -> GlobalProjectionCheckpoint:
        """Handle these streams, one after the other, from their first events; without `streams`, all there are."""
        return self.catch_up_all_streams(projection, GlobalProjectionCheckpoint(), streams, view)

    def catch_up_all_streams(
        self,
        projection: ProjectionLike,
        checkpoint: GlobalProjectionCheckpoint,
        streams: Iterable[str] | None = None,
        view: View | None = None,
    ) -> GlobalProjectionCheckpoint:
        """Handle the events after a checkpoint. Returns the next checkpoint; the given one is not changed."""
        view = MemoryView() if view is None else view
        reached = checkpoint.copy()
        for stream in self._streams("") if streams is None else streams:
            reached.advance(stream, self.catch_up_from_store(projection, stream, checkpoint.cursor_for(stream), view))
        return reached

    def run_matching_streams(
        self, projection: ProjectionLike, prefix: str, view: View | None = None
    ) -> GlobalProjectionCheckpoint:
        """Handle the streams with this prefix, from their first events."""
        return self.catch_up_all_streams(projection, GlobalProjectionCheckpoint(), self._streams(prefix), view)

    def catch_up_matching_streams(
        self, projection: ProjectionLike, prefix: str, checkpoint: GlobalProjectionCheckpoint, view: View | None = None
    ) -> GlobalProjectionCheckpoint:
        """Handle the events after a checkpoint in the streams with this prefix. Returns the next checkpoint."""
        return self.catch_up_all_streams(projection, checkpoint, self._streams(prefix), view)

    def _catch_up(
        self,
        projection: ProjectionLike,
        ref: BuildRef,
        where: tuple[ProjectionState | None, ProjectionState],
        until: int | None,
        batches: int | None,
        lease: WorkerLease | None,
        stop: Callable[[], bool],
        progress: Callable[[int, int], object] = lambda _position, _head: None,
    ) -> CaughtUp:
        known, current = where
        work = self._processor(projection, ref, lease)
        tried: Counter[int] = Counter()
        given_up: dict[int, Failure] = {}
        handled = written = letters = committed = conflicts = 0
        while (batches is None or committed < batches) and not stop():
            now = self.store.now_ms()
            try:
                batch = work.run(known, current, limit=self._batch, until=until, now_ms=now, given_up=given_up)
            except Conflict:
                conflicts += 1
                if conflicts > admin.MOST_CONFLICTS:
                    raise
                known, current = self._state(ref, projection)
                if ref.is_live:
                    check_version(projection, current.version)  # another one may have been switched to meanwhile
                continue
            if batch is None:
                return CaughtUp(current.position or 0, handled, written, letters)
            if batch.is_committed:
                known = current = batch.state
                conflicts, committed = 0, committed + 1
                handled, written = handled + batch.handled, written + batch.streams
                letters += batch.dead_lettered
                self.store.notify()
                progress(current.position or 0, self.store.log.head())
            if batch.failure is not None:
                self._failed(projection, batch.failure, tried, given_up)
        return CaughtUp(current.position or 0, handled, written, letters, is_at_the_end=False)

    def _processor(self, projection: ProjectionLike, ref: BuildRef, lease: WorkerLease | None) -> BatchProcessor:
        return LocalBatches(self.store.kv, self.store.log, projection, ref, lease)

    def _failed(
        self, projection: ProjectionLike, failure: Failure, tried: Counter[int], given_up: dict[int, Failure]
    ) -> None:
        """Wait for another try, give the event up on record, or stop here."""
        position = failure.event.position
        tried[position] += 1
        if tried[position] <= self._on_error.retries:
            self._sleep(pause(self._on_error, tried[position]))
        elif self._on_error.then == "dead-letter":
            given_up[position] = msgspec.structs.replace(failure, attempts=tried[position])
        else:
            raise handler_failed(projection, failure, tried[position]) from failure.error

    def _state(self, ref: BuildRef, projection: ProjectionLike) -> tuple[ProjectionState | None, ProjectionState]:
        """The stored state, and the state to continue from."""
        known = state.read(self.store.kv, ref.key, self.store.address)
        if known is not None and (ref.is_live or ref == state.next_build(ref.name, known.build)):
            return known, known
        if not ref.is_live:
            raise Fenced(
                f"The rebuild of projection {ref.name[:200]!r} was taken over or finished by another runner.",
                code="projection.rebuild-fenced",
                about=f"projection {ref.name[:200]!r}",
                unchanged="the live read model",
                next_step="leave it to the other one, or rebuild again when it has finished",
            )
        return None, ProjectionState(version=projection.version, build=1, position=None, revision=0, updated_ms=0)

    def _checked(self, projection: ProjectionLike) -> BuildRef:
        check_projection(projection)
        if self.store.is_persistent:
            check_kept(projection, self.store.address)
        return state.live_build(projection.name)

    def _streams(self, prefix: str) -> Iterator[str]:
        after: str | None = None
        while names := self.store.list_streams(prefix, after=after, limit=PAGE):
            yield from names
            after = names[-1]


def pause(policy: OnError, tried: int) -> float:
    """Seconds to wait before the next attempt, after this many failures."""
    return min(LONGEST_WAIT, policy.wait * 2.0 ** (tried - 1))


def handler_failed(projection: ProjectionLike, failure: Failure, tried: int) -> Invalid:
    event = failure.event
    times = f", {tried} times" if tried > 1 else ""
    return Invalid(
        f"Projection {projection.name!r} could not handle event {event.sequence} of stream {event.stream[:200]!r} "
        f"({event.type}, position {event.position}){times}: {failure.why}",
        code="projection.handler",
        about=f"projection {projection.name!r}",
        unchanged="its read model and its cursors, which hold everything before that event",
        next_step="correct the handler and catch up again, or put such events aside with OnError(then='dead-letter')",
    )
