"""Cursors: how far a projection has handled each stream, one key per projection and stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.base.arguments import check_number, refused
from holdfast.base.steps import step
from holdfast.errors import Invalid
from holdfast.projections import keys, state
from holdfast.projections.event_log import EventLog
from holdfast.projections.keys import check_stream
from holdfast.projections.state import BuildRef, Reading
from holdfast.storage.kv.store import Reader, Transaction, WriteBatch, end_of


class GlobalProjectionCheckpoint:
    """The last event of each stream that is in the read model; 0 for a stream that was never seen."""

    __slots__ = ("cursors",)

    cursors: dict[str, int]

    def __init__(self, cursors: Mapping[str, int] | None = None) -> None:
        self.cursors = dict(cursors or {})

    def cursor_for(self, stream: str) -> int:
        return self.cursors.get(stream, 0)

    def advance(self, stream: str, sequence: int) -> None:
        """Move a cursor forward, never back."""
        if sequence > self.cursor_for(stream):
            self.cursors[stream] = sequence

    def copy(self) -> GlobalProjectionCheckpoint:
        """An independent copy."""
        return GlobalProjectionCheckpoint(self.cursors)

    def __eq__(self, other: object) -> bool:
        """Equal if every stream's cursor is equal; a missing cursor is 0."""
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
    """Loads, saves and advances the cursors of projections, for `ProjectionStore`."""

    def __init__(self, kv: Reader, now_ms: Callable[[], int]) -> None:
        self._kv = kv
        self._now_ms = now_ms

    def load(self, name: str) -> GlobalProjectionCheckpoint:
        ref = state.live_build(name)
        return GlobalProjectionCheckpoint(dict(read_all(self._kv, ref, self._kv.address)))

    def save(self, name: str, checkpoint: GlobalProjectionCheckpoint) -> None:
        ref, wanted = state.live_build(name), checked(checkpoint)
        with step("cursors.save", cursors=len(wanted)), state.begin(self._kv) as transaction:
            transaction.write({ref.space: replaced(transaction, ref, wanted)})
            transaction.write(self._touched(transaction, ref, loses_position=True))

    def advance(self, name: str, previous: GlobalProjectionCheckpoint, current: GlobalProjectionCheckpoint) -> int:
        if previous is current:
            raise refused("current", "it is the same object as previous; advance a copy()")
        ref, before, after = state.live_build(name), checked(previous), checked(current)
        moved = {stream: cursor for stream, cursor in after.items() if cursor > before.get(stream, 0)}
        if not moved:
            return 0
        with step("cursors.advance", cursors=len(moved)), state.begin(self._kv) as transaction:
            stored = read_some(transaction, ref, list(moved), self._kv.address)
            further = {stream: cursor for stream, cursor in moved.items() if cursor > stored[stream]}
            if further:
                transaction.write({ref.space: writes(ref, further)})
                transaction.write(self._touched(transaction, ref, loses_position=False))
        return len(further)

    def _touched(self, transaction: Transaction, ref: BuildRef, *, loses_position: bool) -> WriteBatch:
        """A write that raises the state's revision, so that a catch-up under way reads the cursors again."""
        found = state.read(transaction, ref.key, self._kv.address)
        if found is None:
            return {}
        position = None if loses_position else found.position
        new = msgspec.structs.replace(
            found, position=position, revision=found.revision + 1, updated_ms=self._now_ms(), failed=None
        )
        return {"meta": {ref.key: keys.seal(ref.key, new)}}


def read_all(reading: Reading, ref: BuildRef, address: str) -> Iterator[tuple[str, int]]:
    for key, value in reading.scan(ref.space, ref.prefix, end_of(ref.prefix)):
        try:
            stream = key[len(ref.prefix) :].decode()
        except UnicodeDecodeError:
            raise keys.corrupt(address, f"a cursor of projection {ref.name!r}", "its key is not text") from None
        yield stream, keys.decode_cursor(value, ref.name, stream, address)


def read_some(reading: Reading, ref: BuildRef, streams: list[str], address: str) -> dict[str, int]:
    """The cursors of these streams, 0 where there is none."""
    prefix, unpack, size = ref.prefix, keys.CURSOR.unpack, keys.CURSOR.size
    found = reading.get_many(ref.space, [prefix + stream.encode() for stream in streams])
    cursors = dict.fromkeys(streams, 0)
    for stream, value in zip(streams, found, strict=True):
        if value is not None:
            # Inlined for the usual value, because this runs for every stream of every batch.
            is_whole = len(value) == size
            cursors[stream] = unpack(value)[0] if is_whole else keys.decode_cursor(value, ref.name, stream, address)
    return cursors


def writes(ref: BuildRef, cursors: dict[str, int]) -> dict[bytes, bytes | None]:
    """The keys and values of these cursors, for the keyspace of the build."""
    prefix, pack = ref.prefix, keys.CURSOR.pack
    return {prefix + stream.encode(): pack(cursor) for stream, cursor in cursors.items()}


def replaced(reading: Reading, ref: BuildRef, wanted: dict[str, int]) -> dict[bytes, bytes | None]:
    """The writes that make the stored cursors exactly `wanted`. Damaged cursors are overwritten or deleted as well."""
    stored = dict(reading.scan(ref.space, ref.prefix, end_of(ref.prefix)))
    changed = {key: value for key, value in writes(ref, wanted).items() if stored.pop(key, None) != value}
    return {**changed, **dict.fromkeys(stored, None)}


def check_were_seen(log: EventLog, ref: BuildRef, seen: Mapping[str, int]) -> None:
    """Check that each stream reaches its cursor, so that events up to the cursor are in the read model.

    `seen` has the streams whose events are skipped, with their cursors; they are looked up in one read. `Invalid` if a
    cursor is ahead of its stream.
    """
    for stream, version in log.versions_of(list(seen)).items():
        if version < seen[stream]:
            raise _cursor_mismatch(
                ref,
                f"its cursor for stream {stream[:200]!r} is at {seen[stream]}, but the stream has {version} events",
                "cursor.ahead",
            )


def gap(ref: BuildRef, stream: str, cursor: int, sequence: int) -> Invalid:
    return _cursor_mismatch(
        ref,
        f"its cursor for stream {stream[:200]!r} is at {cursor}, but the next event to handle is "
        f"{sequence}, as if the projection had read other streams before",
        "cursor.gap",
    )


def _cursor_mismatch(ref: BuildRef, why: str, code: str) -> Invalid:
    return Invalid(
        f"Projection {ref.name[:200]!r} cannot go on: {why}.",
        code=code,
        about=f"projection {ref.name[:200]!r}",
        unchanged="its read model and its cursors",
        next_step="rebuild it, or save the checkpoint that its read model has",
    )
