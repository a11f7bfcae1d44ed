"""Events: `NewEvent`, to be appended, and `Event`, as stored."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.base.arguments import BUFFERS, check_bytes, check_number, check_text, refused
from holdfast.base.codec import json_decoder
from holdfast.errors import Invalid

MAX_PAYLOAD_BYTES = 64 << 20


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append. A payload of bytes is stored as it is, anything else as JSON."""

    type: str
    payload: Any = None
    schema_version: int = 1
    correlation_id: str | None = None
    """The same for all events and commands that one request caused."""
    causation_id: str | None = None
    """The event or command that caused it."""
    time_ms: int | None = None
    """When it happened, in milliseconds since 1970; None: the time of the append."""
    event_id: str | None = None
    """None: the store makes one."""


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stored event, with its sequence in the stream and its position in the log."""

    position: int
    """Its number among all events of the store: from 1, without gaps, in commit order."""
    stream: str
    sequence: int
    """Its number in the stream: from 1, without gaps."""
    event_id: str
    type: str
    schema_version: int
    time_ms: int
    correlation_id: str | None
    causation_id: str | None
    is_json: bool
    payload: bytes

    def json(self, kind: Any = Any) -> Any:
        """The payload, decoded as type `kind`. `Invalid` if it is bytes, or not JSON of that type."""
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
    """A checked new event, with its payload encoded as it will be stored."""

    new: NewEvent
    is_json: bool
    payload: bytes


def encode_event(new: Any) -> EncodedEvent:
    """Check a new event and encode its payload. `Invalid` if that is not possible."""
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
