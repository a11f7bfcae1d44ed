"""Cursors: how far a projection has come in each stream, one key per projection and stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.base.steps import step
from holdfast.errors import Invalid
from holdfast.projections import keys, records, state
from holdfast.projections.arguments import check_number, check_stream, refused
from holdfast.projections.backend import Backend, Change, Reading
from holdfast.projections.event_log import EventLog
from holdfast.projections.state import BuildRef


class GlobalProjectionCheckpoint:
    """The last event of each stream that is in the read model; 0 for a stream that was never seen."""

    __slots__ = ("cursors",)

    cursors: dict[str, int]

    def __init__(self, cursors: Mapping[str, int] | None = None) -> None:
        self.cursors = dict(cursors or {})

    def cursor_for(self, stream: str) -> int:
        return self.cursors.get(stream, 0)

    def advance(self, stream: str, sequence: int) -> None:
        """Move a cursor forward. One that is as far or further stays."""
        if sequence > self.cursor_for(stream):
            self.cursors[stream] = sequence

    def copy(self) -> GlobalProjectionCheckpoint:
        """Another one that can be advanced by itself."""
        return GlobalProjectionCheckpoint(self.cursors)

    def __eq__(self, other: object) -> bool:
        """Equal if every stream's cursor is: one that is missing is 0."""
        if not isinstance(other, GlobalProjectionCheckpoint):
            return NotImplemented
        return _seen(self.cursors) == _seen(other.cursors)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GlobalProjectionCheckpoint({self.cursors!r})"


def checked(checkpoint: Any) -> dict[str, int]:
    """The cursors without those that are 0, or `Invalid`."""
    if not isinstance(checkpoint, GlobalProjectionCheckpoint):
        raise refused("checkpoint", f"a GlobalProjectionCheckpoint is needed, not {type(checkpoint).__name__}")
    for stream, cursor in checkpoint.cursors.items():
        check_stream(stream)
        check_number("cursor", cursor)
    return _seen(checkpoint.cursors)


def _seen(cursors: dict[str, int]) -> dict[str, int]:
    return {stream: cursor for stream, cursor in cursors.items() if cursor}


class Cursors:
    """The three methods of a store of projection checkpoints."""

    def __init__(self, backend: Backend, now_ms: Callable[[], int]) -> None:
        self._backend = backend
        self._now_ms = now_ms

    def load(self, name: str) -> GlobalProjectionCheckpoint:
        ref = state.live_build(name)
        return GlobalProjectionCheckpoint(dict(read_all(self._backend, ref, self._backend.address)))

    def save(self, name: str, checkpoint: GlobalProjectionCheckpoint) -> None:
        ref, wanted = state.live_build(name), checked(checkpoint)
        with step("cursors.save", cursors=len(wanted)), self._backend.begin() as transaction:
            transaction.write(replaced(transaction, ref, wanted))
            transaction.write(self._touched(transaction, ref, loses_position=True))

    def advance(self, name: str, previous: GlobalProjectionCheckpoint, current: GlobalProjectionCheckpoint) -> int:
        if previous is current:
            raise refused("current", "it is the same object as previous; advance a copy()")
        ref, before, after = state.live_build(name), checked(previous), checked(current)
        moved = {stream: cursor for stream, cursor in after.items() if cursor > before.get(stream, 0)}
        if not moved:
            return 0
        with step("cursors.advance", cursors=len(moved)), self._backend.begin() as transaction:
            stored = read_some(transaction, ref, list(moved), self._backend.address)
            further = {stream: cursor for stream, cursor in moved.items() if cursor > stored[stream]}
            if further:
                transaction.write(changes(ref, further))
                transaction.write(self._touched(transaction, ref, loses_position=False))
        return len(further)

    def _touched(self, transaction: Reading, ref: BuildRef, *, loses_position: bool) -> Iterator[Change]:
        """Whoever is catching up meanwhile has to look again."""
        found = state.read(transaction, ref.key, self._backend.address)
        if found is not None:
            position = None if loses_position else found.position
            new = msgspec.structs.replace(
                found, position=position, revision=found.revision + 1, updated_ms=self._now_ms()
            )
            yield "meta", ref.key, records.seal(ref.key, new)


def read_all(reading: Reading, ref: BuildRef, address: str) -> Iterator[tuple[str, int]]:
    for key, value in reading.scan(ref.space, ref.prefix, keys.end_of(ref.prefix)):
        try:
            stream = key[len(ref.prefix) :].decode()
        except UnicodeDecodeError:
            raise records.corrupt(address, f"a cursor of projection {ref.name!r}", "its key is not text") from None
        yield stream, records.decode_cursor(value, ref.name, stream, address)


def read_some(reading: Reading, ref: BuildRef, streams: list[str], address: str) -> dict[str, int]:
    """The cursors of these streams, 0 where there is none."""
    prefix, decode = ref.prefix, records.decode_cursor
    found = reading.read(ref.space, [prefix + stream.encode() for stream in streams])
    return {
        stream: 0 if value is None else decode(value, ref.name, stream, address)
        for stream, value in zip(streams, found, strict=True)
    }


def changes(ref: BuildRef, cursors: dict[str, int]) -> Iterable[Change]:
    space, prefix, pack = ref.space, ref.prefix, records.CURSOR.pack
    return [(space, prefix + stream.encode(), pack(cursor)) for stream, cursor in cursors.items()]


def replaced(reading: Reading, ref: BuildRef, wanted: dict[str, int]) -> Iterator[Change]:
    """What makes the stored cursors exactly these. Damaged ones are overwritten or removed like any other."""
    stored = dict(reading.scan(ref.space, ref.prefix, keys.end_of(ref.prefix)))
    for space, key, value in changes(ref, wanted):
        if stored.pop(key, None) != value:
            yield space, key, value
    for key in stored:
        yield ref.space, key, None


def check_was_seen(log: EventLog, ref: BuildRef, stream: str, cursor: int) -> None:
    """An event at or before the cursor is in the read model already, if the stream ever went as far."""
    version = log.version(stream)
    if version < cursor:
        raise _astray(
            ref,
            f"its cursor for stream {stream[:200]!r} is at {cursor}, and the stream has {version} events",
            "cursor.ahead",
        )


def gap(ref: BuildRef, stream: str, cursor: int, sequence: int) -> Invalid:
    return _astray(
        ref,
        f"its cursor for stream {stream[:200]!r} is at {cursor}, and the next event that it would be given is "
        f"{sequence}, as if it read other streams before",
        "cursor.gap",
    )


def _astray(ref: BuildRef, why: str, code: str) -> Invalid:
    return Invalid(
        f"Projection {ref.name[:200]!r} cannot go on: {why}.",
        code=code,
        about=f"projection {ref.name[:200]!r}",
        unchanged="its read model and its cursors",
        next_step="rebuild it, or save the checkpoint that its read model has",
    )
