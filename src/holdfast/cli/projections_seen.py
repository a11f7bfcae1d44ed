"""Projections as they are stored, read record by record: one that is damaged does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec

from holdfast.errors import Corrupt, NotFound
from holdfast.projections import ProjectionStore, keys, state, worker_lease
from holdfast.projections.keys import check_name
from holdfast.projections.state import ProjectionState
from holdfast.projections.worker_lease import WorkerLeaseRecord
from holdfast.storage.kv.store import Reader, Row, end_of

PAGE = 10_000
_Found = TypeVar("_Found")


class SeenProjection(msgspec.Struct, frozen=True):
    """One projection. None is what is not there, or cannot be read: then it is among the problems."""

    name: str
    standing: ProjectionState | None
    rebuild: ProjectionState | None
    """Of a read model that is being made beside the live one, or was when somebody gave up."""
    lease: WorkerLeaseRecord | None
    cursors: int
    dead_letters: int | None
    problems: tuple[str, ...]

    @property
    def position(self) -> int | None:
        """Up to which everything was handled; None if that is not known, as after cursors were set by hand."""
        return self.standing.position if self.standing else None

    def lag(self, head: int | None) -> int | None:
        """How many events it is behind, of all streams; None if that is not known."""
        return None if self.position is None or head is None else max(0, head - self.position)

    def holder(self, now_ms: int) -> str | None:
        """Who works on it: whose lease has not run out."""
        return self.lease.holder if self.lease and self.lease.until_ms > now_ms else None


class Observed(msgspec.Struct, frozen=True):
    """Every projection of a store."""

    address: str
    head: int | None
    """The position of the last event."""
    projections: list[SeenProjection]
    problems: list[str]
    """What is damaged beside projections."""

    @property
    def is_damaged(self) -> bool:
        return bool(self.problems) or any(projection.problems for projection in self.projections)


def observe(store: ProjectionStore) -> Observed:
    """Read every record of projections. A store that cannot be read at all is an error."""
    # After the projections: what is handled was appended before, so that no lag comes out below zero.
    seen = [_seen(store.kv, escaped) for escaped in sorted(_names(store.kv))]
    problems: list[str] = []
    head = _decoded(store.address, problems, store.log.head)
    return Observed(store.address, head, seen, problems)


def required(store: ProjectionStore, name: str) -> SeenProjection:
    """One projection, for whoever is about to change it.

    `NotFound` if there is none, `Corrupt` if it cannot be told where it stands: then nothing can be done to it either.
    """
    ref = state.live_build(name)
    for key in (ref.key, keys.NEXT_STATES + ref.escaped):
        state.read(store.kv, key, store.address)
    seen = _seen(store.kv, check_name(name))
    if seen.standing is None and seen.rebuild is None and not seen.cursors:
        raise NotFound(
            f"{store.address} has no projection {name[:200]!r}.",
            code="projection.unknown",
            about=f"projection {name[:200]!r}",
            unchanged="the store",
            next_step=f"see which there are: holdfast projections {store.address}",
        )
    return seen


def pages(kv: Reader, space: str, prefix: bytes) -> Iterator[Row]:
    """Every row whose key begins so, without all of them in memory."""
    start, end = prefix, end_of(prefix)
    while rows := list(kv.scan(space, start, end, PAGE)):
        yield from rows
        start = rows[-1][0] + b"\0"


def _names(kv: Reader) -> set[bytes]:
    """As they stand in keys, from whichever record there is."""
    found = {
        key.removeprefix(prefix) for prefix in (keys.STATES, keys.NEXT_STATES) for key, _ in pages(kv, "meta", prefix)
    }
    start: bytes | None = b""
    while start is not None and (rows := list(kv.scan("cursors", start, None, 1))):
        escaped = rows[0][0].partition(b"/")[0]
        found.add(escaped)
        start = end_of(escaped + b"/")  # from one name to the next, whatever the number of their cursors
    return found


def _seen(kv: Reader, escaped: bytes) -> SeenProjection:
    address = kv.address
    try:
        name = keys.unescaped(escaped)
    except UnicodeDecodeError:
        name = escaped.decode(errors="backslashreplace")
        return SeenProjection(name, None, None, None, 0, None, (f"a projection's name is not text: {name[:200]}.",))
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
    return SeenProjection(name, live, rebuild, lease, cursors, letters, tuple(problems))


def _count_letters(kv: Reader, escaped: bytes, live: ProjectionState | None) -> int:
    """Of the live read model."""
    return sum(1 for _ in pages(kv, "letters", keys.of_build(escaped, live.build))) if live else 0


def _decoded(address: str, problems: list[str], decode: Callable[[], _Found]) -> _Found | None:
    """What was found, or None and in words why it cannot be read."""
    try:
        return decode()
    except Corrupt as error:
        problems.append(error.message.removeprefix(f"{address}: "))
        return None
