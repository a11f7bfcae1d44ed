"""A store: events, the cursors of projections over them, and their read models, on one key-value store."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from holdfast.base.arguments import check_number
from holdfast.base.steps import step
from holdfast.errors import Corrupt, Unavailable
from holdfast.projections import keys, state, status
from holdfast.projections.cursors import Cursors, GlobalProjectionCheckpoint
from holdfast.projections.event import Event, NewEvent
from holdfast.projections.event_log import PAGE, Append, EventLog, Expected
from holdfast.projections.state import DeadLetter
from holdfast.projections.status import Lag, ProjectionStatus
from holdfast.projections.view import ReadModel
from holdfast.storage.kv import errors
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.store import Reader

FORMAT = 1
POLL = 0.05
"""Seconds between two looks when nothing was written through this object: others do not tell us."""
_S = TypeVar("_S")


class ProjectionStore:
    """`open_projections` makes it from an address. Threads may share it.

        with open_projections("sqlite:///data/shop.db") as store:
            store.append("order-17", [NewEvent("paid", {"cents": 1290})], expected="none")
            ProjectionRunner(store).catch_up_persistent(Turnover())
            store.view("turnover").get(b"total")

    Guarantees: what returns is durable where the store is persistent. A read model and the cursors of its projection
    are of the same commit, always.
    """

    def __init__(
        self,
        kv: Reader,
        *,
        url: str | None = None,
        clock: Callable[[], float] = time.time,
        ids: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.kv = kv
        self.url = kv.address if url is None else url
        """The address it was opened with, for other processes that open it. It may hold a password."""
        self.log = EventLog(kv, clock, ids)
        self._clock = clock
        self._cursors = Cursors(kv, self.now_ms)
        self._changed = threading.Condition()
        try:
            self._check_format()
        except BaseException:
            kv.close()
            raise

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        return self.kv.address

    @property
    def is_persistent(self) -> bool:
        """Whether it outlives the process."""
        return self.kv.is_persistent

    # Events.

    def append(self, stream: str, events: Sequence[NewEvent], expected: Expected = "any") -> list[Event]:
        """Append events to a stream, all or none; as they were stored, with their sequences and positions.

        `expected` is the version the stream must have: "any", "none" (it must be new), or how many events it holds.
        `Conflict` if it has another: of several writers with the same expectation one wins. After `OutcomeUnknown` read
        the stream: the events are there with their ids, or not at all.
        """
        return self.append_many([Append(stream, events, expected)])

    def append_many(self, appends: Sequence[Append]) -> list[Event]:
        """Append to several streams in one transaction, all or none."""
        events = self.log.append(appends)
        self.notify()
        return events

    def read_stream(self, stream: str, after: int = 0) -> Iterator[Event]:
        """The events of a stream that follow a sequence, in order. None for a stream that is not there."""
        return self.log.read_stream(stream, after)

    def fold(self, stream: str, initial: _S, function: Callable[[_S, Event], _S], after: int = 0) -> _S:
        """Fold the events of a stream that follow a sequence, in memory that does not grow with their number."""
        return self.log.fold(stream, initial, function, after)

    def read_all(self, after: int = 0) -> Iterator[Event]:
        """All events that follow a position, in the order of their commits."""
        return self.log.read_all(after)

    def stream_version(self, stream: str) -> int:
        """How many events a stream has; 0 if it is not there."""
        return self.log.version(stream)

    def list_streams(self, prefix: str = "", *, after: str | None = None, limit: int = PAGE) -> list[str]:
        """A page of the names of streams with this prefix, in byte order, after the name `after`."""
        return self.log.list_streams(prefix, after, limit)

    @property
    def position(self) -> int:
        """Of the last event; 0 if there is none."""
        return self.log.head()

    # Checkpoints.

    def load_projection_checkpoint(self, name: str) -> GlobalProjectionCheckpoint:
        """The cursors of a projection, all of one moment; empty if there are none. `Corrupt` if one is damaged."""
        return self._cursors.load(name)

    def save_projection_checkpoint(self, name: str, checkpoint: GlobalProjectionCheckpoint) -> None:
        """Make the cursors of a projection exactly these: others are removed, and one may move backwards.

        The read model is not touched. The next catch-up compares every stream once to find out where to go on.
        """
        self._cursors.save(name, checkpoint)
        self.notify()

    def advance_projection_cursors(
        self, name: str, previous: GlobalProjectionCheckpoint, current: GlobalProjectionCheckpoint
    ) -> int:
        """Write the cursors that are further in `current` than in `previous`, in one step; how many were written.

        No cursor moves backwards: one that another process has stored meanwhile stays if it is as far.
        """
        written = self._cursors.advance(name, previous, current)
        self.notify()
        return written

    # Projections.

    def view(self, name: str) -> ReadModel:
        """The live read model of a projection, to read. It stays right through resets and rebuilds."""
        return ReadModel(self.kv, name)

    def lag(self, name: str) -> Lag:
        """How far a projection is behind the last event."""
        return status.lag(self.kv, self.log, name)

    def projections(self) -> list[ProjectionStatus]:
        """Every projection that has a read model or cursors here, by name."""
        return status.projections(self.kv, self.log)

    def dead_letters(self, name: str) -> list[DeadLetter]:
        """The events that this projection's live read model is without, oldest first."""
        return status.dead_letters(self.kv, name)

    def wait_for(self, name: str, position: int, timeout: float = 10.0) -> None:
        """Wait until a projection has handled everything up to a position, as `append` returns it: one's own writes.

        `Unavailable` if that takes longer than `timeout` seconds.
        """
        check_number("position", position)
        ref = state.live_build(name)

        def is_there() -> bool:
            found = state.read(self.kv, ref.key, self.address)
            return position == 0 or (found is not None and (found.position or 0) >= position)

        wait_until(is_there, self._changed, timeout, f"Projection {name[:200]!r}", f"position {position}")

    def notify(self) -> None:
        """Wake the threads of this process that wait for new events."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_news(self, seconds: float) -> None:
        """Until something was written through this object, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def now_ms(self) -> int:
        return max(0, int(self._clock() * 1000))

    def close(self) -> None:
        """Close the key-value store. Fine to call twice."""
        self.kv.close()

    def __enter__(self) -> ProjectionStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_format(self) -> None:
        value = self.kv.get("meta", keys.FORMAT)
        if value is None:
            self._make() if hasattr(self.kv, "begin") else self._check_made()
            return
        found = keys.unseal(keys.FORMAT, value, int, "the record of its format", self.address)
        if found > FORMAT:
            raise errors.newer("store", self.address, f"it has format {found}, this release reads up to {FORMAT}")

    def _make(self) -> None:
        with step("store.create"), state.begin(self.kv) as transaction:
            if transaction.get("meta", keys.FORMAT) is not None:
                return  # made by another process meanwhile
            if any(transaction.scan("meta", b"", None, 1)) or any(transaction.scan("events", b"", None, 1)):
                raise Corrupt(
                    f"{self.address}: the record of its format is missing, and there are others.",
                    code="store.record",
                    about=self.address,
                    unchanged="the store",
                    next_step="restore the store from a copy, or begin with a new one at another place",
                )
            transaction.write({"meta": {keys.FORMAT: keys.seal(keys.FORMAT, FORMAT)}})

    def _check_made(self) -> None:
        """Opening a store to write makes the record of its format; a read-only opening must not."""
        if any(self.kv.scan("meta", b"", None, 1)) or any(self.kv.scan("events", b"", None, 1)):
            raise keys.corrupt(self.address, "the record of its format", "it is missing, and there are others")
        raise errors.not_there("store", self.address)


def open_projections(
    url: str,
    *,
    read_only: bool = False,
    clock: Callable[[], float] = time.time,
    ids: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> ProjectionStore:
    """Open the store at an address; it is made if it is not there.

    `sqlite:///path` is on this machine, and several processes may write. `postgresql://host/database?store=name`,
    `redis://host?store=name` and SlateDB on object storage (`s3://bucket/path`, `gs://`, `az://`, with settings from
    the environment) take one writing process: opening the store fences the one before. `rocksdb:///path` takes one
    process, and refuses a second. `file:///path` is SlateDB on local files, for development: it does not sync.
    `memory://` is new each time, `memory://name` is shared within this process; both are gone when closed. Read models
    in tables of their own are possible on SQLite and PostgreSQL. `clock` gives the time of day and `ids` makes the ids
    of events, for tests.

    With `read_only` nothing is made or changed, no writer is fenced, and a store that is not there is `NotFound`. On
    SlateDB it shows the moment of the opening, and is good for some minutes.
    """
    kv = open_kv(url, keys.SCHEMA, "read" if read_only else "shared")
    return ProjectionStore(kv, url=url, clock=clock, ids=ids)


def wait_until(is_so: Callable[[], bool], changed: threading.Condition, timeout: float, what: str, wanted: str) -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable(
                f"{what} did not come to {wanted} within {timeout:g} seconds.",
                code="wait.timeout",
                about=what,
                unchanged="everything",
                next_step="see whether its worker runs and is healthy, then wait again",
            )
        with changed:
            changed.wait(min(POLL, left))
