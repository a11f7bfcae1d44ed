"""Plans that empty a projection, rebuild it, or handle its dead letters again.

A plan describes the worker as of `made_ms`, the time when the plan was made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

import msgspec

from holdfast.errors import Conflict, Corrupt, Invalid
from holdfast.operations.plan import Outcome, Progress, Table, progress_of_steps
from holdfast.projections import OnError, ProjectionRunner, ProjectionStore, keys, open_projections
from holdfast.projections.projection import ProjectionLike, check_kept
from holdfast.projections.rebuild import CHUNK
from holdfast.projections.state import live_build
from holdfast.projections.view import has_sql, table_prefix
from holdfast.status import format
from holdfast.status.projections import (
    DeadLetterListing,
    StoredProjection,
    pages,
    read_dead_letters,
    require_projection,
)

COUNTED = 100_000
"""Keys are counted up to this number."""
_SWITCHED_NOTHING = "nothing was switched: readers have the live one, and --resume goes on where this stopped"


class ResetProjectionPlan(msgspec.Struct, frozen=True):
    """A plan to empty a read model, its cursors and its dead letters: it begins again at the first event.

    `apply` raises `Conflict` if another read model has replaced the one shown. Progress that a worker made meanwhile is
    no conflict.
    """

    url: str
    address: str
    seen: StoredProjection
    head: int
    keys: int
    """The number of keys in the read model, at most `COUNTED` + 1."""
    tables: int
    made_ms: int

    activity: ClassVar[str] = "removing"
    is_empty: ClassVar[bool] = False

    @property
    def question(self) -> str:
        return f"Empty projection {self.seen.name!r} of {self.address}?"

    @property
    def warnings(self) -> Sequence[str]:
        return _fencing(self.address)

    @property
    def amount(self) -> int:
        return self.keys if self.keys <= COUNTED else 0

    def lines(self) -> Iterator[str | Table]:
        yield Table(("REMOVE", "WHICH"), list(self._rows()))
        yield f"to read again: {format.count(self.head, 'event')}, when it is next caught up"
        yield f"works on it: {self.seen.worker(self.made_ms)}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        kept = [format.count_up_to(self.keys, COUNTED, "key")]
        kept += [format.count(self.tables, "table")] if self.tables else []
        yield "the read model", f"{' and '.join(kept)}, up to position {format.known(self.seen.position)}"
        yield format.count(self.seen.cursors, "cursor"), "all"
        if self.seen.dead_letters:
            yield format.count(self.seen.dead_letters, "dead letter"), "their events are read again like the others"
        if self.seen.rebuild is not None:
            at = format.number(self.seen.rebuild.position or 0)
            yield "an unfinished rebuild", f"of version {format.known(self.seen.rebuild.version)}, at position {at}"

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.seen.version,
            "position": self.seen.position,
            "keys": min(self.keys, COUNTED),
            "has_more_keys": self.keys > COUNTED,
            "tables": self.tables,
            "cursors": self.seen.cursors,
            "dead_letters": self.seen.dead_letters,
            "rebuild": self.seen.rebuild_json(),
            "events_to_read": self.head,
            "lease": self.seen.lease_json(self.made_ms),
        }

    def apply(self, progress: Progress | None = None) -> Outcome:
        name = self.seen.name
        with open_projections(self.url) as store:
            shown, found = self.seen.standing, require_projection(store, name).standing
            if (shown and shown.build) != (found and found.build):
                raise Conflict(
                    f"Projection {name[:200]!r} was emptied or rebuilt by another process since this was shown.",
                    code="projection.changed",
                    about=f"projection {name[:200]!r}",
                    unchanged="the store",
                    next_step="look at what is there now, then do this again if it is still wanted",
                )
            with progress_of_steps(("rebuild.sweep",), CHUNK, self.amount, progress):
                ProjectionRunner(store).reset(name)
        return Outcome([f"emptied {name}"])


def plan_reset(url: str, name: str) -> ResetProjectionPlan:
    """The plan to empty a projection of the store at `url`."""
    with open_projections(url, read_only=True) as store:
        seen = require_projection(store, name)
        many, tables = _size_of_read_model(store, seen)
        return ResetProjectionPlan(url, store.address, seen, store.position, many, tables, _now_ms())


def _size_of_read_model(store: ProjectionStore, seen: StoredProjection) -> tuple[int, int]:
    """The number of keys, at most `COUNTED` + 1, and the number of tables."""
    escaped, build = live_build(seen.name).escaped, seen.standing.build if seen.standing else 1
    many = sum(1 for _ in islice(pages(store.kv, "views", keys.of_build(escaped, build)), COUNTED + 1))
    return many, len(store.kv.tables(table_prefix(store.kv, escaped, build))) if has_sql(store.kv) else 0


class RebuildProjectionPlan(msgspec.Struct, frozen=True):
    """A plan to build a new read model from the first event, beside the live one, and then switch to it in one step.

    `apply` also reads the events that were appended meanwhile. If it is interrupted, the live read model stays; a plan
    with `resume` continues from where it stopped.
    """

    url: str
    address: str
    seen: StoredProjection
    projection: ProjectionLike
    resume: bool
    on_error: OnError
    head: int
    start: int
    """The position after which a resumed rebuild continues; 0 for one that begins at the first event."""
    made_ms: int

    activity: ClassVar[str] = "rebuilding"
    is_empty: ClassVar[bool] = False

    @property
    def question(self) -> str:
        return f"Rebuild projection {self.seen.name!r} of {self.address}?"

    @property
    def warnings(self) -> Sequence[str]:
        version = self.projection.version
        if self.seen.holder(self.made_ms) is None or (self.seen.standing and self.seen.version == version):
            return _fencing(self.address)
        return (f"a worker that has another version than {version} stops after the switch", *_fencing(self.address))

    @property
    def amount(self) -> int:
        """Events to read."""
        return max(0, self.head - self.start)

    def lines(self) -> Iterator[str | Table]:
        seen = self.seen
        made_nothing = seen.standing is not None and seen.version is None
        of = "nothing yet" if made_nothing else f"version {format.known(seen.version)}"
        letters = f", {format.count(seen.dead_letters, 'dead letter')}" if seen.dead_letters else ""
        at = format.known(seen.position)
        yield f"live:         {of}, up to position {at}{letters}; readers have it until the switch"
        yield f"to make:      version {format.number(self.projection.version)}"
        after = f" after position {format.number(self.start)}, where an unfinished rebuild stands" if self.start else ""
        yield f"to read:      {format.count(self.amount, 'event')}{after}"
        yield f"works on it:  {seen.worker(self.made_ms)}"
        if seen.rebuild is not None and not self.start:
            version, at = format.known(seen.rebuild.version), format.number(seen.rebuild.position or 0)
            yield f"given up:     an unfinished rebuild of version {version}, at position {at}"

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.seen.version,
            "new_version": self.projection.version,
            "position": self.seen.position,
            "resumes_at": self.start or None,
            "events_to_read": self.amount,
            "dead_letters": self.seen.dead_letters,
            "rebuild": self.seen.rebuild_json(),
            "lease": self.seen.lease_json(self.made_ms),
        }

    def apply(self, progress: Progress | None = None) -> Outcome:
        projection = self.projection

        def read_up_to(position: int, head: int) -> None:
            if progress:
                progress(max(0, position - self.start), max(0, head - self.start))

        with open_projections(self.url) as store:
            try:
                runner = ProjectionRunner(store, on_error=self.on_error)
                done = runner.rebuild(projection, resume=self.resume, progress=read_up_to)
            except KeyboardInterrupt as interruption:
                interruption.add_note(_SWITCHED_NOTHING)
                raise
            except Invalid as error:
                raise _about_rebuild(error) from error
            letters = len(store.dead_letters(projection.name))
        aside = f", {format.count(letters, 'event')} put aside" if letters else ""
        line = (
            f"rebuilt {projection.name}: {format.count(done.handled, 'event')} handled{aside}, "
            f"version {format.number(projection.version)} is live at position {format.number(done.position)}"
        )
        return Outcome([line], result={"position": done.position, "handled": done.handled, "dead_letters": letters})


def plan_rebuild(
    url: str, projection: ProjectionLike, *, resume: bool = False, on_error: OnError | None = None
) -> RebuildProjectionPlan:
    """The plan of a rebuild. As in the runner, only a rebuild of the same version and of all events can be resumed."""
    with open_projections(url, read_only=True) as store:
        if store.is_persistent:
            check_kept(projection, store.address)
        seen = require_projection(store, projection.name)
        begun = seen.rebuild
        goes_on = resume and begun is not None and (begun.version, begun.until) == (projection.version, None)
        start = (begun.position or 0) if goes_on and begun else 0
        return RebuildProjectionPlan(
            url, store.address, seen, projection, resume, on_error or OnError(), store.position, start, _now_ms()
        )


def _about_rebuild(error: Invalid) -> Invalid:
    """The runner's error for a failed handler, which is worded for a catch-up, worded for a rebuild."""
    if error.code != "projection.handler":
        return error
    return Invalid(
        error.message,
        code=error.code,
        about=error.about,
        unchanged="the live read model and its cursors: nothing was switched",
        next_step="correct the handler and rebuild again, or add --put-aside to go on without such events",
    )


class RetryDeadLettersPlan(msgspec.Struct, frozen=True):
    """A plan to handle dead letters again.

    The changes of each event that succeeds are committed together with the removal of its letter. `apply` handles the
    letters that exist when it runs.
    """

    url: str
    address: str
    projection: ProjectionLike
    letters: DeadLetterListing

    activity: ClassVar[str] = "handling"
    amount: ClassVar[int] = 0

    @property
    def is_empty(self) -> bool:
        return not self.letters.found

    @property
    def question(self) -> str:
        return f"Handle {format.count(len(self.letters.found), 'event')} again in {self.address}?"

    @property
    def warnings(self) -> Sequence[str]:
        return () if self.is_empty else _fencing(self.address)

    def lines(self) -> Iterator[str | Table]:
        if not self.is_empty:
            many = format.count(len(self.letters.found), "event")
            yield f"to handle again: {many}, with version {self.projection.version}"

    def as_json(self) -> dict[str, Any]:
        return {"events": len(self.letters.found), "version": self.projection.version}

    def apply(self, progress: Progress | None = None) -> Outcome:
        with open_projections(self.url) as store:
            left = ProjectionRunner(store).retry_dead_letters(self.projection)
        handled = max(0, len(self.letters.found) - len(left))
        problems = []
        if left:
            where = format.listed(letter.position for letter in left)
            problems = [f"still failing: {format.count(len(left), 'event')}, at position {where}"]
        return Outcome(
            [f"handled {format.count(handled, 'event')}"],
            problems,
            {"handled": handled, "left": [letter.position for letter in left]},
            Invalid.exit_code if left else 0,
        )


def plan_retry(url: str, projection: ProjectionLike) -> RetryDeadLettersPlan:
    """The plan to handle every dead letter again.

    `Invalid` if another version made the read model; `Corrupt` if a letter is damaged: only a rebuild helps then.
    """
    about = f"projection {projection.name[:200]!r}"
    with open_projections(url, read_only=True) as store:
        seen = require_projection(store, projection.name)
        if seen.version != projection.version:
            raise Invalid(
                f"The read model of {about} was made by version {seen.version}, this is version {projection.version}.",
                code="projection.version",
                about=about,
                unchanged="everything",
                next_step="name the version that made it, or rebuild it: holdfast projections rebuild",
            )
        letters = read_dead_letters(store, seen)
        if letters.problems:
            raise Corrupt(
                f"{store.address}: a dead letter of {about} is damaged.",
                code="store.record",
                about=about,
                unchanged="the store",
                next_step="rebuild the projection: holdfast projections rebuild",
            )
        return RetryDeadLettersPlan(url, store.address, projection, letters)


def _fencing(address: str) -> Sequence[str]:
    """A warning if opening the store to write fences other writers. RocksDB refuses a second process instead."""
    if address.startswith(("sqlite://", "memory://", "rocksdb://")):
        return ()
    return ("a process that has this store open can write nothing more to it: the store has one writer",)


def _now_ms() -> int:
    return int(time.time() * 1000)
