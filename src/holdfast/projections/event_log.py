"""The event log: events by stream, and all events in commit order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec

from holdfast.base.arguments import check_number, check_text, refused
from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt
from holdfast.projections import keys
from holdfast.projections.event import EncodedEvent, Event, NewEvent, encode_event
from holdfast.projections.keys import MAX_STREAM_BYTES, check_stream
from holdfast.projections.state import Reading, begin
from holdfast.storage.kv.store import Reader, WriteBatch, end_of

Expected = int | Literal["any", "none"]
"""The version that a stream must have: any, none yet, or exactly this many events."""
PAGE = 1000
_S = TypeVar("_S")


class Append(msgspec.Struct, frozen=True):
    """Events for one stream, and the version that the stream must have."""

    stream: str
    events: Sequence[NewEvent]
    expected: Expected = "any"


class EventLog:
    """Events by stream and by position.

    Guarantees: an append is stored as a whole or not at all, and durable on return if the store is persistent.
    Sequences and positions rise from 1 without gaps, and a position is visible only after all before it.
    """

    def __init__(self, kv: Reader, clock: Callable[[], float], ids: Callable[[], str]) -> None:
        self._kv = kv
        self._clock = clock
        self._ids = ids

    def append(self, appends: Sequence[Append]) -> list[Event]:
        batch = [(check_stream(a.stream), a, _check_expected(a.expected), _encoded(a.events)) for a in appends]
        if not batch:
            return []
        with step("events.append", streams=len(batch)), begin(self._kv) as transaction:
            position = self.head(transaction)
            names = list(dict.fromkeys(stream for stream, *_ in batch))
            found = transaction.get_many("heads", names)
            versions = {name: self._version(name, value) for name, value in zip(names, found, strict=True)}
            events: list[Event] = []
            for stream, append, expected, new in batch:
                if expected is not None and versions[stream] != expected:
                    raise _conflict(append.stream, versions[stream], expected)
                for one in new:
                    position += 1
                    versions[stream] += 1
                    events.append(self._event(append.stream, versions[stream], position, one))
            if events:
                writes = _writes(events)
                writes["heads"] = {name: keys.seal(name, versions[name]) for name in names if versions[name]}
                writes["meta"] = {keys.HEAD: keys.seal(keys.HEAD, position)}
                transaction.write(writes)
        return events

    def head(self, reading: Reading | None = None) -> int:
        """The position of the last event; 0 if there is none."""
        value = (reading or self._kv).get("meta", keys.HEAD)
        if value is None:
            return 0
        return keys.unseal(keys.HEAD, value, int, "the record of the last position", self._kv.address)

    def version(self, stream: str) -> int:
        name = check_stream(stream)
        return self._version(name, self._kv.get("heads", name))

    def versions_of(self, streams: Sequence[str]) -> dict[str, int]:
        """The versions of these streams, in one read."""
        names = [check_stream(stream) for stream in streams]
        found = self._kv.get_many("heads", names) if names else []
        return {stream: self._version(name, value) for stream, name, value in zip(streams, names, found, strict=True)}

    def read_stream(self, stream: str, after: int = 0) -> Iterator[Event]:
        for wanted in self.positions(stream, after):
            found = []
            for key, value in zip(wanted, self._kv.get_many("events", wanted), strict=True):
                if value is None:
                    raise self._missing(key, stream)
                found.append((key, value))
            yield from keys.unseal_many(found, Event, "event", self._kv.address)

    def positions(self, stream: str, after: int = 0) -> Iterator[list[bytes]]:
        """Pages of the keys, in `events`, of a stream's events after a sequence."""
        prefix = keys.index_prefix(check_stream(stream))
        check_number("after", after)
        end = end_of(prefix)
        while after < 2**64 - 1:
            rows = list(self._kv.scan("index", prefix + keys.NUMBER.pack(after + 1), end, PAGE))
            if not rows:
                return
            yield [position for _, position in rows]
            after = keys.NUMBER.unpack(rows[-1][0][-8:])[0]

    def read_all(self, after: int = 0) -> Iterator[Event]:
        check_number("after", after)
        while events := self.page(after, PAGE):
            yield from events
            after = events[-1].position

    def page(self, after: int, limit: int) -> list[Event]:
        """Up to `limit` events that follow a position. `Corrupt` if one is missing."""
        if after >= 2**64 - 1:
            return []
        rows = self._kv.scan("events", keys.NUMBER.pack(after + 1), None, limit)
        events = keys.unseal_many(rows, Event, "event", self._kv.address)
        if events and events[-1].position != after + len(events):
            raise self._missing(b"", None)
        return events

    def list_streams(self, prefix: str, after: str | None, limit: int) -> list[str]:
        start = check_text("prefix", prefix, MAX_STREAM_BYTES) if prefix else b""
        end = end_of(start)
        check_number("limit", limit, 1)
        if after is not None:
            start = max(start, check_stream(after) + b"\0")
        return [name.decode() for name, _ in self._kv.scan("heads", start, end, limit)]

    def positions_of(self, events: Sequence[tuple[bytes, int]]) -> list[int]:
        """The positions of these events, each a stream and a sequence, in one read. They must exist."""
        wanted = [keys.index_prefix(stream) + keys.NUMBER.pack(sequence) for stream, sequence in events]
        found = self._kv.get_many("index", wanted) if wanted else []
        positions = []
        for (stream, sequence), position in zip(events, found, strict=True):
            if position is None:
                raise self._missing(keys.NUMBER.pack(sequence), stream.decode())
            positions.append(keys.NUMBER.unpack(position)[0])
        return positions

    def versions(self) -> Iterator[list[tuple[bytes, int]]]:
        """Every stream with its version, in pages."""
        start = b""
        while rows := list(self._kv.scan("heads", start, None, PAGE * 10)):
            yield [(name, self._version(name, value)) for name, value in rows]
            start = rows[-1][0] + b"\0"

    def fold(self, stream: str, initial: _S, function: Callable[[_S, Event], _S], after: int = 0) -> _S:
        for event in self.read_stream(stream, after):
            initial = function(initial, event)
        return initial

    def _event(self, stream: str, sequence: int, position: int, one: EncodedEvent) -> Event:
        new = one.new
        return Event(
            position,
            stream,
            sequence,
            new.event_id if new.event_id is not None else self._ids(),
            new.type,
            new.schema_version,
            new.time_ms if new.time_ms is not None else max(0, int(self._clock() * 1000)),
            new.correlation_id,
            new.causation_id,
            one.is_json,
            one.payload,
        )

    def _version(self, name: bytes, value: bytes | None) -> int:
        if value is None:
            return 0
        what = f"the version of stream {name[:200]!r}"
        return keys.unseal(name, value, int, what, self._kv.address)

    def _missing(self, key: bytes, stream: str | None) -> Corrupt:
        what = f"event {int.from_bytes(key)} of stream {stream!r:.200}" if stream else "the order of all events"
        return keys.corrupt(self._kv.address, what, "an event is missing")


def _encoded(events: Iterable[NewEvent]) -> list[EncodedEvent]:
    if isinstance(events, NewEvent):
        raise refused("events", "a list of events is needed, not a single one")
    return [encode_event(event) for event in events]


def _check_expected(expected: Expected) -> int | None:
    if expected == "any":
        return None
    return 0 if expected == "none" else check_number("expected", expected)


def _writes(events: list[Event]) -> WriteBatch:
    pack = keys.NUMBER.pack
    by_position: dict[bytes, bytes | None] = {}
    by_stream: dict[bytes, bytes | None] = {}
    for event in events:
        position = pack(event.position)
        by_position[position] = keys.seal(position, event)
        by_stream[keys.index_prefix(event.stream.encode()) + pack(event.sequence)] = position
    return {"events": by_position, "index": by_stream}


def _conflict(stream: str, found: int, expected: int) -> Conflict:
    if expected > found:
        message = f"Stream {stream[:200]!r} has {found} events, and never had {expected}."
        code, next_step = "stream.version-ahead", "read the stream again; the version came from another store"
    else:
        message = f"Stream {stream[:200]!r} has {found} events, not {expected}."
        code, next_step = "stream.version", "read the stream again, decide again, and append with its new version"
    return Conflict(message, code=code, about=f"stream {stream[:200]!r}", unchanged="the store", next_step=next_step)
