"""Projections as they are stored, read record by record: one that is damaged does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec

from holdfast.errors import Corrupt, NotFound
from holdfast.projections import ProjectionStore, keys, records
from holdfast.projections import state as standing
from holdfast.projections.arguments import check_name
from holdfast.projections.backend import Backend, Row, Space
from holdfast.projections.state import Lease, Standing

PAGE = 10_000
_Found = TypeVar("_Found")


class SeenProjection(msgspec.Struct, frozen=True):
    """One projection. None is what is not there, or cannot be read: then it is among the problems."""

    name: str
    standing: Standing | None
    rebuild: Standing | None
    """Of a read model that is being made beside the live one, or was when somebody gave up."""
    lease: Lease | None
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
    seen = [_seen(store.backend, escaped) for escaped in sorted(_names(store.backend))]
    problems: list[str] = []
    head = _decoded(store.address, problems, store.log.head)
    return Observed(store.address, head, seen, problems)


def required(store: ProjectionStore, name: str) -> SeenProjection:
    """One projection, for whoever is about to change it.

    `NotFound` if there is none, `Corrupt` if it cannot be told where it stands: then nothing can be done to it either.
    """
    track = standing.live(name)
    for key in (track.key, keys.SHADOWS + track.escaped):
        standing.read(store.backend, key, store.address)
    seen = _seen(store.backend, check_name(name))
    if seen.standing is None and seen.rebuild is None and not seen.cursors:
        raise NotFound(
            f"{store.address} has no projection {name[:200]!r}.",
            code="projection.unknown",
            about=f"projection {name[:200]!r}",
            unchanged="the store",
            next_step=f"see which there are: holdfast projections {store.address}",
        )
    return seen


def pages(backend: Backend, space: Space, prefix: bytes) -> Iterator[Row]:
    """Every row whose key begins so, without all of them in memory."""
    start, end = prefix, keys.end_of(prefix)
    while rows := backend.scan(space, start, end, PAGE):
        yield from rows
        start = rows[-1][0] + b"\0"


def _names(backend: Backend) -> set[bytes]:
    """As they stand in keys, from whichever record there is."""
    found = {
        key.removeprefix(prefix)
        for prefix in (keys.STANDINGS, keys.SHADOWS)
        for key, _ in pages(backend, "meta", prefix)
    }
    start: bytes | None = b""
    while start is not None and (rows := backend.scan("cursors", start, None, 1)):
        escaped = rows[0][0].partition(b"/")[0]
        found.add(escaped)
        start = keys.end_of(escaped + b"/")  # from one name to the next, whatever the number of their cursors
    return found


def _seen(backend: Backend, escaped: bytes) -> SeenProjection:
    address = backend.address
    try:
        name = keys.unescaped(escaped)
    except UnicodeDecodeError:
        name = escaped.decode(errors="backslashreplace")
        return SeenProjection(name, None, None, None, 0, None, (f"a projection's name is not text: {name[:200]}.",))
    problems: list[str] = []

    def decoded(prefix: bytes, decode: Callable[[bytes, bytes, str], _Found]) -> _Found | None:
        key = prefix + escaped
        value = backend.read("meta", [key])[0]
        return None if value is None else _decoded(address, problems, lambda: decode(key, value, address))

    live = decoded(keys.STANDINGS, standing.decode)
    letters = None if problems else _count_letters(backend, escaped, live)
    rebuild = decoded(keys.SHADOWS, standing.decode)
    lease = decoded(keys.LEASES, standing.decode_lease)
    cursors = 0
    for key, value in pages(backend, "cursors", escaped + b"/"):
        cursors += 1
        stream = key[len(escaped) + 1 :].decode(errors="backslashreplace")
        _decoded(address, problems, partial(records.decode_cursor, value, name, stream, address))
    return SeenProjection(name, live, rebuild, lease, cursors, letters, tuple(problems))


def _count_letters(backend: Backend, escaped: bytes, live: Standing | None) -> int:
    """Of the live read model."""
    return sum(1 for _ in pages(backend, "letters", keys.of_build(escaped, live.build))) if live else 0


def _decoded(address: str, problems: list[str], decode: Callable[[], _Found]) -> _Found | None:
    """What was found, or None and in words why it cannot be read."""
    try:
        return decode()
    except Corrupt as error:
        problems.append(error.message.removeprefix(f"{address}: "))
        return None
