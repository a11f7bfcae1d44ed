"""Status of projections, read only."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.errors import NotFound
from holdfast.projections import keys, state, worker_lease
from holdfast.projections.event_log import EventLog
from holdfast.projections.state import BuildRef, DeadLetter, ProjectionState
from holdfast.storage.kv.store import Reader, end_of


class Lag(msgspec.Struct, frozen=True):
    """How far a projection is behind."""

    position: int
    head: int

    @property
    def events(self) -> int:
        """The number of events it is behind, counting also streams that it does not read."""
        return max(0, self.head - self.position)


class ProjectionStatus(msgspec.Struct, frozen=True):
    """The status of one projection, for people and dashboards."""

    name: str
    version: int | None
    lag: Lag
    streams: int
    """The number of streams it has a cursor for."""
    dead_letters: int
    rebuilding: int | None
    """The position of a read model that is being rebuilt beside this one."""
    holder: str | None
    """The worker that took the lease last and did not release it; the lease may have expired."""
    updated_ms: int | None


def lag(kv: Reader, log: EventLog, name: str) -> Lag:
    found = required(kv, state.live_build(name))
    return Lag(found.position or 0, log.head())


def projections(kv: Reader, log: EventLog) -> list[ProjectionStatus]:
    head = log.head()
    return [_status(kv, name, head) for name in sorted({*_with_a_state(kv), *_with_cursors(kv)})]


def dead_letters(kv: Reader, name: str) -> list[DeadLetter]:
    ref = state.live_build(name)
    found = state.read(kv, ref.key, kv.address)
    return [] if found is None else letters_of(kv, ref, found.build)


def letters_of(kv: Reader, ref: BuildRef, build: int) -> list[DeadLetter]:
    prefix = keys.of_build(ref.escaped, build)
    return [
        keys.unseal(key, value, DeadLetter, f"a dead letter of projection {ref.name[:200]!r}", kv.address)
        for key, value in kv.scan("letters", prefix, end_of(prefix))
    ]


def required(kv: Reader, ref: BuildRef) -> ProjectionState:
    found = state.read(kv, ref.key, kv.address)
    if found is None:
        raise unknown(ref.name, kv.address)
    return found


def unknown(name: str, address: str) -> NotFound:
    return NotFound(
        f"{address} has no projection {name[:200]!r}.",
        code="projection.unknown",
        about=f"projection {name[:200]!r}",
        unchanged="the store",
        next_step="see which there are with store.projections(), or catch it up once",
    )


def _status(kv: Reader, name: str, head: int) -> ProjectionStatus:
    ref = state.live_build(name)
    found = state.read(kv, ref.key, kv.address)
    rebuild = state.read(kv, keys.NEXT_STATES + ref.escaped, kv.address)
    return ProjectionStatus(
        name,
        found.version if found else None,
        Lag((found.position or 0) if found else 0, head),
        sum(1 for _ in kv.scan("cursors", ref.prefix, end_of(ref.prefix))),
        len(letters_of(kv, ref, found.build)) if found else 0,
        (rebuild.position or 0) if rebuild else None,
        _holder(kv, ref),
        found.updated_ms if found else None,
    )


def _holder(kv: Reader, ref: BuildRef) -> str | None:
    key = keys.LEASES + ref.escaped
    value = kv.get("meta", key)
    if value is None:
        return None
    lease = worker_lease.decode(key, value, kv.address)
    return lease.holder if lease.until_ms else None


def _with_a_state(kv: Reader) -> Iterator[str]:
    for prefix in (keys.STATES, keys.NEXT_STATES):
        for key, _ in kv.scan("meta", prefix, end_of(prefix)):
            yield keys.unescaped(key.removeprefix(prefix))


def _with_cursors(kv: Reader) -> Iterator[str]:
    """Names of projections that have cursors. Reads one key per projection, however many cursors it has."""
    start: bytes | None = b""
    while start is not None and (rows := list(kv.scan("cursors", start, None, 1))):
        escaped = rows[0][0].partition(b"/")[0]
        yield keys.unescaped(escaped)
        start = end_of(escaped + b"/")
