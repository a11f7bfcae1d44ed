"""Checks of what callers pass in, before anything is tried. Each failure is `Invalid` and leaves the store alone.

The limits are the same on every backend. A cursor's key holds a projection's name and a stream's, and SlateDB's keys
end at 65,535 bytes: hence the two of them.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import Invalid

MAX_U64 = 2**64 - 1
MAX_STREAM_BYTES = 40_000
MAX_NAME_BYTES = 20_000
"""Of a projection's name as it stands in a key, where `/` and `%` take three bytes each."""
MAX_TEXT_BYTES = 1024
MAX_PAYLOAD_BYTES = 64 << 20
MAX_KEY_BYTES = 2048
MAX_VALUE_BYTES = 64 << 20
BUFFERS = (bytes, bytearray, memoryview)


def check_stream(stream: Any) -> bytes:
    """A stream's name as UTF-8: any text that is not empty, up to 40,000 bytes."""
    return check_text("stream", stream, MAX_STREAM_BYTES)


def check_name(name: Any) -> bytes:
    """A projection's name as it stands in keys: UTF-8 with `/` and `%` escaped, so that no name holds a separator."""
    encoded = check_text("projection", name, MAX_NAME_BYTES).replace(b"%", b"%25").replace(b"/", b"%2F")
    if len(encoded) > MAX_NAME_BYTES:
        raise refused("projection", f"its name has {len(encoded)} bytes when escaped, the limit is {MAX_NAME_BYTES}")
    return encoded


def check_text(what: str, text: Any, most: int = MAX_TEXT_BYTES) -> bytes:
    if not isinstance(text, str):
        raise refused(what, f"text is needed, not {_named(text)}")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise refused(what, f"{text[:40]!r} is not valid Unicode") from None
    if not encoded:
        raise refused(what, "it is empty")
    if len(encoded) > most:
        raise refused(what, f"{text[:40]!r}... has {len(encoded)} bytes, the limit is {most}")
    return encoded


def check_number(what: str, value: Any, least: int = 0, most: int = MAX_U64) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        shown = repr(value) if not isinstance(value, int) or value.bit_length() <= 128 else "one of more than 128 bits"
        raise refused(what, f"it must be a whole number from {least} to {most}, not {shown}")
    return int(value)


def check_key(key: Any) -> bytes:
    return check_bytes("key", key, 1, MAX_KEY_BYTES)


def check_prefix(prefix: Any) -> bytes:
    return check_bytes("prefix", prefix, 0, MAX_KEY_BYTES)


def check_value(value: Any) -> bytes:
    return check_bytes("value", value, 0, MAX_VALUE_BYTES)


def check_bytes(what: str, value: Any, least: int, most: int) -> bytes:
    if not isinstance(value, BUFFERS):
        raise refused(what, f"bytes are needed, not {_named(value)}")
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size < least:
        raise refused(what, "it is empty")
    if size > most:
        raise refused(what, f"it has {size} bytes, the limit is {most}")
    return bytes(value)


def refused(what: str, why: str) -> Invalid:
    return Invalid(f"{what}: {why}.", code="argument.refused", about=what, unchanged="everything")


def _named(value: object) -> str:
    return "None" if value is None else type(value).__name__
