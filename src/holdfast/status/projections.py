"""The status of projections, read record by record: a damaged record does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.base.shortened import shortened
from holdfast.errors import Corrupt, NotFound
from holdfast.projections import DeadLetter, ProjectionStore, keys, state, worker_lease
from holdfast.projections.keys import check_name
from holdfast.projections.state import ProjectionState
from holdfast.projections.worker_lease import WorkerLeaseRecord
from holdfast.status import format
from holdfast.storage.kv.store import Reader, Row, end_of

PAGE = 10_000
HOLDER = 80
_Found = TypeVar("_Found")


class StoredProjection(msgspec.Struct, frozen=True):
    """One projection. A record that is missing or damaged is None; a damaged one is also listed in `problems`."""

    name: str
    standing: ProjectionState | None
    rebuild: ProjectionState | None
    """The state of a rebuild that is under way or was abandoned."""
    lease: WorkerLeaseRecord | None
    cursors: int
    dead_letters: int | None
    problems: tuple[str, ...]

    @property
    def position(self) -> int | None:
        """The position up to which all events are handled; None if unknown, as after cursors were set by hand."""
        return self.standing.position if self.standing else None

    @property
    def version(self) -> int | None:
        """The version of the projection that made the live read model; None if there is no model, or if unknown."""
        return self.standing.version if self.standing else None

    def lag(self, head: int | None) -> int | None:
        """The number of events of all streams between its position and `head`; None if unknown."""
        return None if self.position is None or head is None else max(0, head - self.position)

    def holder(self, now_ms: int) -> str | None:
        """The worker that holds the lease; None if the lease is free or has run out."""
        return self.lease.holder if self.lease and self.lease.until_ms > now_ms else None

    def worker(self, now_ms: int) -> str:
        """The worker that the lease names, for people."""
        if self.lease is None or not self.lease.until_ms:
            return "nobody"
        holder = shortened(self.lease.holder, HOLDER)
        if self.holder(now_ms) is None:
            return f"{holder}, until its lease ran out {format.age(self.lease.until_ms, now_ms)}"
        return holder

    def as_json(self, head: int | None, now_ms: int) -> dict[str, Any]:
        return {
            "projection": self.name,
            "state": "damaged" if self.problems else "ok",
            "reasons": list(self.problems),
            "version": self.version,
            "position": self.position,
            "lag": self.lag(head),
            "streams": self.cursors,
            "dead_letters": self.dead_letters,
            "updated_ms": self.standing.updated_ms if self.standing else None,
            "rebuild": self.rebuild_json(),
            "lease": self.lease_json(now_ms),
        }

    def rebuild_json(self) -> dict[str, Any] | None:
        if self.rebuild is None:
            return None
        return {
            "version": self.rebuild.version,
            "position": self.rebuild.position,
            "until": self.rebuild.until,
            "updated_ms": self.rebuild.updated_ms,
        }

    def lease_json(self, now_ms: int) -> dict[str, Any] | None:
        lease = self.lease
        if lease is None or not lease.until_ms:
            return None
        return {"holder": lease.holder, "until_ms": lease.until_ms, "is_held": lease.until_ms > now_ms}


class ProjectionsStatus(msgspec.Struct, frozen=True):
    """Every projection of a store."""

    address: str
    head: int | None
    """The position of the last event."""
    projections: list[StoredProjection]
    problems: list[str]
    """Damaged records that belong to no single projection, a sentence each."""

    @property
    def is_damaged(self) -> bool:
        return bool(self.problems) or any(projection.problems for projection in self.projections)

    def as_json(self, now_ms: int) -> dict[str, Any]:
        return {
            "address": self.address,
            "now_ms": now_ms,
            "head": self.head,
            "projections": [projection.as_json(self.head, now_ms) for projection in self.projections],
            "problems": self.problems,
        }


class DeadLetterListing(msgspec.Struct, frozen=True):
    """The dead letters of a live read model: the readable ones, oldest first, and a sentence for each damaged one."""

    found: list[DeadLetter]
    problems: list[str]

    def as_json(self) -> dict[str, Any]:
        return {"dead_letters": [msgspec.to_builtins(letter) for letter in self.found], "problems": self.problems}


def observe_projections(store: ProjectionStore) -> ProjectionsStatus:
    """Read every record of projections. A store that cannot be read at all is an error."""
    found = [_stored(store.kv, escaped) for escaped in sorted(_names(store.kv))]
    problems: list[str] = []
    # Read the head after the projections: every handled event is below it then, so no lag is negative.
    head = _decoded(store.address, problems, store.log.head)
    found.sort(key=lambda projection: format.natural(projection.name))
    return ProjectionsStatus(store.address, head, found, problems)


def require_projection(store: ProjectionStore, name: str) -> StoredProjection:
    """Load one projection that is about to be changed.

    `NotFound` if there is none, `Corrupt` if its state record is damaged: it cannot be changed then.
    """
    ref = state.live_build(name)
    for key in (ref.key, keys.NEXT_STATES + ref.escaped):
        state.read(store.kv, key, store.address)
    found = _stored(store.kv, check_name(name))
    if found.standing is None and found.rebuild is None and not found.cursors:
        raise NotFound(
            f"{store.address} has no projection {name[:200]!r}.",
            code="projection.unknown",
            about=f"projection {name[:200]!r}",
            unchanged="the store",
            next_step=f"see which there are: holdfast projections {store.address}",
        )
    return found


def read_dead_letters(store: ProjectionStore, projection: StoredProjection) -> DeadLetterListing:
    """Every dead letter of the live read model."""
    letters = DeadLetterListing([], [])
    if projection.standing is None:
        return letters
    prefix = keys.of_build(state.live_build(projection.name).escaped, projection.standing.build)
    for key, value in pages(store.kv, "letters", prefix):
        try:
            letters.found.append(keys.unseal(key, value, DeadLetter, "a dead letter", store.address))
        except Corrupt as error:
            letters.problems.append(error.message.removeprefix(f"{store.address}: "))
    return letters


def pages(kv: Reader, space: str, prefix: bytes) -> Iterator[Row]:
    """Every row whose key begins with the prefix, read page by page."""
    start, end = prefix, end_of(prefix)
    while rows := list(kv.scan(space, start, end, PAGE)):
        yield from rows
        start = rows[-1][0] + b"\0"


def _names(kv: Reader) -> set[bytes]:
    """The names of all projections, escaped as in keys, from states, rebuilds and cursors."""
    found = {
        key.removeprefix(prefix) for prefix in (keys.STATES, keys.NEXT_STATES) for key, _ in pages(kv, "meta", prefix)
    }
    start: bytes | None = b""
    while start is not None and (rows := list(kv.scan("cursors", start, None, 1))):
        escaped = rows[0][0].partition(b"/")[0]
        found.add(escaped)
        start = end_of(escaped + b"/")  # jump to the next name: one read per projection, not per cursor
    return found


def _stored(kv: Reader, escaped: bytes) -> StoredProjection:
    address = kv.address
    try:
        name = keys.unescaped(escaped)
    except UnicodeDecodeError:
        name = escaped.decode(errors="backslashreplace")
        return StoredProjection(name, None, None, None, 0, None, (f"a projection's name is not text: {name[:200]}.",))
    problems: list[str] = []

    def decoded(prefix: bytes, decode: Callable[[bytes, bytes, str], _Found]) -> _Found | None:
        key = prefix + escaped
        value = kv.get("meta", key)
        return None if value is None else _decoded(address, problems, lambda: decode(key, value, address))

    live = decoded(keys.STATES, state.decode)
    letters = None if problems else _count_letters(kv, escaped, live)
    rebuild = decoded(keys.NEXT_STATES, state.decode)
    lease = decoded(keys.LEASES, worker_lease.decode)
    cursors = 0
    for key, value in pages(kv, "cursors", escaped + b"/"):
        cursors += 1
        stream = key[len(escaped) + 1 :].decode(errors="backslashreplace")
        _decoded(address, problems, partial(keys.decode_cursor, value, name, stream, address))
    return StoredProjection(name, live, rebuild, lease, cursors, letters, tuple(problems))


def _count_letters(kv: Reader, escaped: bytes, live: ProjectionState | None) -> int:
    """The number of dead letters of the live read model."""
    return sum(1 for _ in pages(kv, "letters", keys.of_build(escaped, live.build))) if live else 0


def _decoded(address: str, problems: list[str], decode: Callable[[], _Found]) -> _Found | None:
    """The decoded record; if it is damaged, None, and the reason is appended to `problems`."""
    try:
        return decode()
    except Corrupt as error:
        problems.append(error.message.removeprefix(f"{address}: "))
        return None
