"""Runs projections: over events in memory, over streams, and over the whole store with durable cursors."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.base.arguments import check_number, refused
from holdfast.errors import Conflict, Fenced
from holdfast.projections import admin, rebuild, retry, state
from holdfast.projections.batch import BatchProcessor, Failure, LocalBatches, ProjectionCommit, moved
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
from holdfast.projections.state import BuildRef, DeadLetter, FailedEvent, ProjectionState
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import MemoryView, View
from holdfast.projections.worker_lease import WorkerLease

BATCH = 1000


class CaughtUp(msgspec.Struct, frozen=True):
    """The result of a catch-up."""

    position: int
    """The read model holds everything up to here."""
    handled: int = 0
    cursors: int = 0
    """How many cursors were written."""
    dead_lettered: int = 0
    is_at_the_end: bool = True
    """False if it ended at the limit of `batches`, because `stop` returned True, or at a failed event."""
    failed: FailedEvent | None = None
    """The event that failed, if it is to be retried later; only without `wait`."""


class ProjectionRunner:
    """Runs projections over a store.

        ProjectionRunner(store).catch_up_persistent(Turnover())

    Guarantees for persistent read models: each event is in the read model exactly once, in the order of the log,
    whichever process is killed and however many runners run at the same time. If two runners collide, one commits and
    the other reads the state again. An idle catch-up makes two requests to the backend; a catch-up with new events
    reads and writes only records of the streams that changed.
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
        wait: bool = True,
    ) -> CaughtUp:
        """Handle every event since the last catch-up; each batch commits its read model and its cursors together.

        `until` is the last position to handle, `batches` the largest number of commits, also of a rebuild that a new
        version needs and of the removal of old builds; `stop` is called before each.
        With a `lease`, `Fenced` if another worker has taken it. `on_error` decides what happens when a handler raises.
        If it says stop, all events before the failed one are committed, and `Invalid` with the code
        `projection.handler` is raised, with the handler's exception as its cause. If it says retry, the failure is
        counted in the store, and this call sleeps until the next attempt; without `wait` it returns instead, with the
        event as `failed`, and the next call goes on.
        """
        ref = self._checked(projection)
        known, current = self._state(ref, projection)
        if current.garbage:
            rebuild.sweep(self.store.kv, ref, batches)
            known, current = self._state(ref, projection)
        if current.version not in (None, projection.version):
            if self._on_version == "fail":
                check_version(projection, current.version)
            done = self.rebuild(projection, resume=True, batches=batches, lease=lease, stop=stop, wait=wait)
            if not done.is_at_the_end:
                return CaughtUp(current.position or 0, is_at_the_end=False, failed=done.failed)
            known, current = self._state(ref, projection)
        return self._catch_up(projection, ref, (known, current), until, batches, lease, stop, wait)

    def rebuild(
        self,
        projection: ProjectionLike,
        *,
        until: int | None = None,
        resume: bool = False,
        batches: int | None = None,
        lease: WorkerLease | None = None,
        stop: Callable[[], bool] = lambda: False,
        wait: bool = True,
        progress: Callable[[int, int], object] = lambda _position, _head: None,
    ) -> CaughtUp:
        """Build a new read model from the first event, beside the live one, and switch to it in one commit.

        Meanwhile the live read model can be read and caught up. A process that dies leaves it as it was; with `resume`
        the rebuild continues where it ended, which is right only if the handler is the same. `until` builds the read
        model as of that position. The switch also replaces the cursors by those of the new read model. `progress` is
        called with the position of the rebuild and that of the last event. After `batches` commits, or if `stop`
        returns True before one, nothing is switched, and the rebuild can be resumed; `wait` as for
        `catch_up_persistent`.
        """
        ref = self._checked(projection)
        if until is not None:
            check_number("until", until)
        next_ref, current = rebuild.start(self.store, ref, projection.version, until, resume)
        handled = 0
        while True:
            where = self._state(next_ref, projection)
            done = self._catch_up(projection, next_ref, where, until, batches, lease, stop, wait, progress)
            handled += done.handled
            if not done.is_at_the_end:
                return CaughtUp(done.position, handled, is_at_the_end=False, failed=done.failed)
            switched = rebuild.switch(self.store, ref, next_ref, current.build, until, lease)
            if switched is not None:
                break
        self.store.notify()
        rebuild.sweep(self.store.kv, ref, batches)
        return CaughtUp(switched.position or 0, handled)

    def rewind(self, projection: ProjectionLike, position: int, *, view: str = "replay") -> CaughtUp:
        """Go back to a position.

        `replay` rebuilds the read model exactly as of that position, beside the live one. `keep` leaves the read model
        as it is and only moves the cursors back: the events after the position are then applied a second time, which is
        right for handlers that overwrite and wrong for handlers that add.
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
        """Empty a projection in one commit: read model, cursors, dead letters. The next catch-up starts from event 1.

        A rebuild under way is abandoned, and its runner is fenced. `NotFound` if there is no such projection.
        """
        admin.reset(self.store, name)

    def retry_dead_letters(self, projection: ProjectionLike) -> list[DeadLetter]:
        """Handle the events of the dead letters again. Returns the letters that failed again; they stay stored.

        For an event that succeeds, one commit changes the read model and removes the letter. The handler sees these
        events after events that follow them in the log, and must be able to handle that. `Invalid` if the read model
        was made by another version.
        """
        return admin.retry_letters(self.store, self._checked(projection), projection)

    # Replays: these write nothing to the store. A handler's error is raised as it is; events before it stay handled.
    # Without a `view`, the read model is a new one in memory; projections that keep their own state need no other.

    def run(self, projection: ProjectionLike, events: Iterable[Event], view: View | None = None) -> View:
        """Handle all of these events. Returns the view."""
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
        """Handle the events of one stream after a sequence. They must be in order."""
        check_number("after", after)
        return self.run(projection, events[bisect_right(events, after, key=lambda event: event.sequence) :], view)

    def run_from_store(self, projection: ProjectionLike, stream: str, view: View | None = None) -> int:
        """Handle a stream from its first event. Returns the sequence of the last one."""
        return self.catch_up_from_store(projection, stream, 0, view)

    def catch_up_from_store(self, projection: ProjectionLike, stream: str, after: int, view: View | None = None) -> int:
        """Handle the events of a stream after a sequence. Returns the sequence of the last one."""
        view = MemoryView() if view is None else view
        check_projection(projection)
        for event in self.store.read_stream(stream, after):
            projection.handle(event, view)
            after = event.sequence
        return after

    def run_all_streams(
        self, projection: ProjectionLike, streams: Iterable[str] | None = None, view: View | None = None
    ) -> GlobalProjectionCheckpoint:
        """Handle these streams, one after the other, from their first events; without `streams`, all streams."""
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
        wait: bool,
        progress: Callable[[int, int], object] = lambda _position, _head: None,
    ) -> CaughtUp:
        known, current = where
        work = self._processor(projection, ref, lease)
        given_up: dict[int, Failure] = {}
        handled = written = letters = committed = conflicts = 0
        has_slept = False
        while (batches is None or committed < batches) and not stop():
            now = self.store.now_ms()
            left = 0.0 if has_slept else retry.seconds_left(current.failed, self._on_error, now)
            if left and not wait:
                return CaughtUp(current.position or 0, handled, written, letters, False, current.failed)
            if left:
                self._sleep(left)
                has_slept = True
                continue  # `stop` may return True by now
            has_slept = False
            try:
                batch = work.run(known, current, limit=self._batch, until=until, now_ms=now, given_up=given_up)
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
                    commit = ProjectionCommit(self.store.kv, ref, known, lease)
                    known, current = self._failed(projection, batch.failure, (known, current), commit, given_up)
            except Conflict:
                conflicts += 1
                if conflicts > admin.MAX_CONFLICTS:
                    raise
                known, current = self._state(ref, projection)
                if ref.is_live:
                    check_version(projection, current.version)  # a rebuild may have switched to another version
        return CaughtUp(current.position or 0, handled, written, letters, is_at_the_end=False)

    def _processor(self, projection: ProjectionLike, ref: BuildRef, lease: WorkerLease | None) -> BatchProcessor:
        return LocalBatches(self.store.kv, self.store.log, projection, ref, lease)

    def _failed(
        self,
        projection: ProjectionLike,
        failure: Failure,
        where: tuple[ProjectionState | None, ProjectionState],
        commit: ProjectionCommit,
        given_up: dict[int, Failure],
    ) -> tuple[ProjectionState | None, ProjectionState]:
        """Apply `on_error`: count the attempt in the store, mark the event for a dead letter, or raise.

        Returns the stored state, and the state to continue from.
        """
        current, now, position = where[1], self.store.now_ms(), failure.event.position
        attempts = retry.attempts_at(position, current.failed)
        verdict = retry.decide(self._on_error, attempts)
        if verdict == "again":
            failed = retry.waiting(failure, attempts, self._on_error, now)
            new = moved(current, projection.version, position - 1, now, failed)
            commit.write_state(new)
            return new, new
        if verdict == "dead-letter":
            given_up[position] = msgspec.structs.replace(failure, attempts=attempts)
            return where[0], msgspec.structs.replace(current, failed=None)  # it has nothing to wait for any more
        if current.failed is not None:  # the next catch-up has all its retries again
            commit.write_state(moved(current, projection.version, position - 1, now))
        raise retry.handler_failed(projection, failure, attempts) from failure.error

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
