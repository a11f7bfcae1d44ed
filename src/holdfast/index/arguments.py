"""Checks of what callers pass in, before anything is tried. Each failure is `Invalid` and leaves the index alone.

The limits are the same on every backend, so that an index can move from one to another.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import Invalid

MAX_U64 = 2**64 - 1
MAX_ID_BYTES = 1024
MAX_POSITION_BYTES = 65_536
MAX_KEY_BYTES = 2048  # PostgreSQL's index entries end at 2,704
MAX_VALUE_BYTES = 64 << 20
BUFFERS = (bytes, bytearray, memoryview)


def check_source_id(source_id: Any) -> bytes:
    """The id as UTF-8: not empty, at most 1,024 bytes, without NUL. Anything else may be in it."""
    if not isinstance(source_id, str):
        raise refused("source_id", f"text is needed, not {_named(source_id)}")
    try:
        encoded = source_id.encode()
    except UnicodeEncodeError:
        raise refused("source_id", f"{source_id[:40]!r} is not valid Unicode") from None
    if not encoded:
        raise refused("source_id", "it is empty")
    if len(encoded) > MAX_ID_BYTES:
        raise refused("source_id", f"it has {len(encoded)} bytes, the limit is {MAX_ID_BYTES}")
    if b"\0" in encoded:
        raise refused("source_id", f"{source_id[:40]!r} holds a NUL character")
    return encoded


def check_u64(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_U64:
        raise refused(name, f"it must be a whole number from 0 to {MAX_U64}, not {_shown(value)}")
    return int(value)


def check_position(position: Any) -> bytes | None:
    """An opaque position: None, or up to 65,536 bytes."""
    return None if position is None else _as_bytes("source_position", position, 0, MAX_POSITION_BYTES)


def check_key(key: Any) -> bytes:
    return _as_bytes("key", key, 1, MAX_KEY_BYTES)


def check_prefix(prefix: Any) -> bytes:
    return _as_bytes("prefix", prefix, 0, MAX_KEY_BYTES)


def check_value(value: Any) -> bytes:
    return _as_bytes("value", value, 0, MAX_VALUE_BYTES)


def _as_bytes(name: str, value: Any, least: int, most: int) -> bytes:
    if not isinstance(value, BUFFERS):
        raise refused(name, f"bytes are needed, not {_named(value)}")
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size < least:
        raise refused(name, "it is empty")
    if size > most:
        raise refused(name, f"it has {size} bytes, the limit is {most}")
    return bytes(value)


def refused(name: str, why: str) -> Invalid:
    return Invalid(f"{name}: {why}.", code="argument.refused", about=name, unchanged="the index")


def _named(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _shown(value: object) -> str:
    # Python refuses to print a number of many thousand digits.
    return repr(value) if not isinstance(value, int) or value.bit_length() <= 128 else "one of more than 128 bits"
