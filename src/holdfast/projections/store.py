"""A store: events, and the cursors and read models of projections, on one key-value store."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from holdfast.base.addresses import kv_absolute
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
"""Seconds between two reads while waiting: a commit of another process does not notify this object."""
_S = TypeVar("_S")


class ProjectionStore:
    """A store of events and projections, opened by `open_projections`. Threads may share it.

        with open_projections("sqlite:///data/shop.db") as store:
            store.append("order-17", [NewEvent("paid", {"cents": 1290})], expected="none")
            ProjectionRunner(store).catch_up_persistent(Turnover())
            store.view("turnover").get(b"total")

    Guarantees: a write is durable when it returns, if the store is persistent. A read model and the cursors of its
    projection always come from the same commit.
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
        self._is_closed = False
        try:
            self._check_format()
        except BaseException:
            kv.close()
            raise

    def __repr__(self) -> str:
        return f"ProjectionStore({self.address!r}{', closed' if self._is_closed else ''})"

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
        """Append events to a stream, all or none. Returns them as stored, with their sequences and positions.

        `expected` is the version the stream must have: "any", "none" (it must be new), or how many events it holds.
        `Conflict` if it has another version: of several writers with the same `expected` one wins. After
        `OutcomeUnknown` read the stream: either all the events are there, with their ids, or none.
        """
        return self.append_many([Append(stream, events, expected)])

    def append_many(self, appends: Sequence[Append]) -> list[Event]:
        """Append to several streams in one transaction, all or none."""
        events = self.log.append(appends)
        self.notify()
        return events

    def read_stream(self, stream: str, after: int = 0) -> Iterator[Event]:
        """The events of a stream after a sequence, in order. Empty for a stream that does not exist."""
        return self.log.read_stream(stream, after)

    def fold(self, stream: str, initial: _S, function: Callable[[_S, Event], _S], after: int = 0) -> _S:
        """Fold the events of a stream after a sequence. Memory does not grow with their number."""
        return self.log.fold(stream, initial, function, after)

    def read_all(self, after: int = 0) -> Iterator[Event]:
        """All events after a position, in commit order."""
        return self.log.read_all(after)

    def stream_version(self, stream: str) -> int:
        """How many events a stream has; 0 if it does not exist."""
        return self.log.version(stream)

    def list_streams(self, prefix: str = "", *, after: str | None = None, limit: int = PAGE) -> list[str]:
        """A page of the names of streams with this prefix, in byte order, after the name `after`."""
        return self.log.list_streams(prefix, after, limit)

    @property
    def position(self) -> int:
        """The position of the last event; 0 if there is none."""
        return self.log.head()

    # Checkpoints.

    def load_projection_checkpoint(self, name: str) -> GlobalProjectionCheckpoint:
        """The cursors of a projection, all of one moment; empty if there are none. `Corrupt` if one is damaged."""
        return self._cursors.load(name)

    def save_projection_checkpoint(self, name: str, checkpoint: GlobalProjectionCheckpoint) -> None:
        """Replace all cursors of a projection by these: others are removed, and a cursor may move backwards.

        The read model is not changed. The next catch-up compares every stream once to find where to continue.
        """
        self._cursors.save(name, checkpoint)
        self.notify()

    def advance_projection_cursors(
        self, name: str, previous: GlobalProjectionCheckpoint, current: GlobalProjectionCheckpoint
    ) -> int:
        """Write the cursors that are higher in `current` than in `previous`, in one commit. Returns how many it wrote.

        No cursor moves backwards: if another process has stored a cursor at least as high meanwhile, that one stays.
        """
        written = self._cursors.advance(name, previous, current)
        self.notify()
        return written

    # Projections.

    def view(self, name: str) -> ReadModel:
        """The live read model of a projection, read only. The object stays valid across resets and rebuilds."""
        return ReadModel(self.kv, name)

    def lag(self, name: str) -> Lag:
        """How far a projection is behind the last event."""
        return status.lag(self.kv, self.log, name)

    def projections(self) -> list[ProjectionStatus]:
        """Every projection that has a read model or cursors here, by name."""
        return status.projections(self.kv, self.log)

    def dead_letters(self, name: str) -> list[DeadLetter]:
        """The events that are missing from this projection's live read model because they failed, oldest first."""
        return status.dead_letters(self.kv, name)

    def wait_for(self, name: str, position: int, timeout: float = 10.0) -> None:
        """Wait until a projection has handled everything up to a position.

        With the position of an appended event, the caller then reads its own writes. `Unavailable` if it takes longer
        than `timeout` seconds.
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

    def wait_for_news(self, seconds: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until a write through this object or a `notify`, at most `seconds`; not at all if `unless` is True.

        A `notify` that follows a change of `unless` is never missed.
        """
        with self._changed:
            if not unless():
                self._changed.wait(seconds)

    def now_ms(self) -> int:
        return max(0, int(self._clock() * 1000))

    def close(self) -> None:
        """Close the key-value store. Fine to call twice."""
        self.kv.close()
        self._is_closed = True

    def __enter__(self) -> ProjectionStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_format(self) -> None:
        value = self.kv.get("meta", keys.FORMAT)
        if value is None:
            if hasattr(self.kv, "begin"):
                self._make()
                return
            value = self._made_meanwhile()
        found = keys.unseal(keys.FORMAT, value, int, "the record of its format", self.address)
        if found > FORMAT:
            raise errors.newer("store", self.address, f"it has format {found}, this release reads up to {FORMAT}")

    def _make(self) -> None:
        with step("store.create"), state.begin(self.kv) as transaction:
            if transaction.get("meta", keys.FORMAT) is not None:
                return  # made by another process meanwhile
            if any(transaction.scan("meta", b"", None, 1)) or any(transaction.scan("events", b"", None, 1)):
                raise Corrupt(
                    f"{self.address}: the record of its format is missing, but there are other records.",
                    code="store.record",
                    about=self.address,
                    unchanged="the store",
                    next_step="restore the store from a copy, or start with a new one at another address",
                )
            transaction.write({"meta": {keys.FORMAT: keys.seal(keys.FORMAT, FORMAT)}})

    def _made_meanwhile(self) -> bytes:
        """The record of the format, if another process has made the store since the first look at it.

        Only an opening for writing may make it: `NotFound` if the store is empty.
        """
        if not any(self.kv.scan("meta", b"", None, 1)) and not any(self.kv.scan("events", b"", None, 1)):
            raise errors.not_there("store", self.address)
        value = self.kv.get("meta", keys.FORMAT)
        if value is None:
            raise keys.corrupt(self.address, "the record of its format", "it is missing, but there are other records")
        return value


def open_projections(
    url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    clock: Callable[[], float] = time.time,
    ids: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> ProjectionStore:
    """Open the store at an address; create it if there is none.

    `sqlite:///path` (relative; `sqlite:////path` is absolute) and a plain path are a local file, and several processes
    may write. `postgresql://host/database?store=name`, `redis://host?store=name` and SlateDB on object storage
    (`s3://bucket/path`, `gs://`, `az://`, with settings from the environment) allow one writing process: opening the
    store fences the previous one. `rocksdb:///path` allows one process, and refuses a second. `file:///path` is SlateDB
    on local files, at an absolute path, for development: it does not sync.
    `memory://` is new each time, `memory://name` is shared within this process; both are gone when closed. Read models
    in tables of their own are possible on SQLite and PostgreSQL. `clock` returns the time of day and `ids` generates
    the ids of events; tests replace them.

    With `read_only` nothing is created or changed, no writer is fenced, and `NotFound` is raised if there is no store.
    On SlateDB a read-only store shows the moment of the opening, and can be used for a few minutes.
    """
    kv = open_kv(url, keys.SCHEMA, "read" if read_only else "shared")
    return ProjectionStore(kv, url=kv_absolute(url), clock=clock, ids=ids)


def wait_until(
    is_done: Callable[[], bool], changed: threading.Condition, timeout: float, what: str, wanted: str
) -> None:
    deadline = time.monotonic() + timeout
    while not is_done():
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable(
                f"{what} did not reach {wanted} within {timeout:g} seconds.",
                code="wait.timeout",
                about=what,
                unchanged="everything",
                next_step="see whether its worker runs and is healthy, then wait again",
            )
        with changed:
            changed.wait(min(POLL, left))
