"""Events: as they are given to the store, and as it has kept them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.base.arguments import BUFFERS, check_bytes, check_number, check_text, refused
from holdfast.base.codec import json_decoder
from holdfast.errors import Invalid

MAX_PAYLOAD_BYTES = 64 << 20


class NewEvent(msgspec.Struct, frozen=True):
    """Something that happened. A payload of bytes is kept as it is, anything else as JSON."""

    type: str
    payload: Any = None
    schema_version: int = 1
    correlation_id: str | None = None
    """What it belongs to: the same for everything that one request set off."""
    causation_id: str | None = None
    """The event or command that it came of."""
    time_ms: int | None = None
    """When it happened, in milliseconds since 1970; None: when it is appended."""
    event_id: str | None = None
    """None: the store makes one."""


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in the store, with its place in its stream and among all events."""

    position: int
    """Among all events of the store: from 1, without gaps, in the order of their commits."""
    stream: str
    sequence: int
    """In its stream: from 1, without gaps."""
    event_id: str
    type: str
    schema_version: int
    time_ms: int
    correlation_id: str | None
    causation_id: str | None
    is_json: bool
    payload: bytes

    def json(self, kind: Any = Any) -> Any:
        """The payload, decoded, as this type. `Invalid` if it is bytes, or is not JSON of that type."""
        if not self.is_json:
            raise self._undecodable("its payload is bytes, not JSON")
        try:
            return json_decoder(kind).decode(self.payload)
        except msgspec.MsgspecError as error:
            raise self._undecodable(f"its payload does not decode: {error}") from None

    def _undecodable(self, why: str) -> Invalid:
        return Invalid(
            f"Event {self.sequence} of stream {self.stream[:200]!r} ({self.type}): {why}.",
            code="event.payload",
            about=f"event {self.position}",
            unchanged="the event",
            next_step="teach the handler this type and schema version",
        )


class EncodedEvent(msgspec.Struct, frozen=True):
    """A new event that was checked, with its payload as it will be kept."""

    new: NewEvent
    is_json: bool
    payload: bytes


def encode_event(new: Any) -> EncodedEvent:
    """Check a new event and encode its payload, or `Invalid`."""
    if not isinstance(new, NewEvent):
        raise refused("event", f"a NewEvent is needed, not {type(new).__name__}")
    check_text("type", new.type)
    check_number("schema_version", new.schema_version, 0, 2**32 - 1)
    if new.time_ms is not None:
        check_number("time_ms", new.time_ms, 0, 2**63 - 1)
    for what in ("correlation_id", "causation_id", "event_id"):
        if getattr(new, what) is not None:
            check_text(what, getattr(new, what))
    if isinstance(new.payload, BUFFERS):
        return EncodedEvent(new, False, check_bytes("payload", new.payload, 0, MAX_PAYLOAD_BYTES))
    try:
        payload = msgspec.json.encode(new.payload)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise refused("payload", f"it cannot be written as JSON: {error}") from None
    return EncodedEvent(new, True, check_bytes("payload", payload, 0, MAX_PAYLOAD_BYTES))
