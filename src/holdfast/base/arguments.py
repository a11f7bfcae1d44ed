"""Checks of arguments, made before anything is tried. A check that fails raises `Invalid` with the argument's name.

The limits of keys and values are the same on every backend, so a store can move from one backend to another.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import Invalid

MAX_U64 = 2**64 - 1
MAX_TEXT_BYTES = 1024
MAX_KEY_BYTES = 2048  # PostgreSQL's index entries end at 2,704
MAX_VALUE_BYTES = 64 << 20
BUFFERS = (bytes, bytearray, memoryview)


def check_text(what: str, text: Any, most: int = MAX_TEXT_BYTES, *, nul: bool = True) -> bytes:
    """A text that is not empty, as UTF-8 of at most `most` bytes; with `nul`, it may contain NUL characters."""
    if not isinstance(text, str):
        raise refused(what, f"text is needed, not {type_name(text)}")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise refused(what, f"{text[:40]!r} is not valid Unicode") from None
    if not encoded:
        raise refused(what, "it is empty")
    if len(encoded) > most:
        raise refused(what, f"{text[:40]!r}... has {len(encoded)} bytes, the limit is {most}")
    if not nul and b"\0" in encoded:
        raise refused(what, f"{text[:40]!r} holds a NUL character")
    return encoded


def check_bytes(what: str, value: Any, least: int = 0, most: int = MAX_VALUE_BYTES) -> bytes:
    """Any buffer, as bytes."""
    if not isinstance(value, BUFFERS):
        raise refused(what, f"bytes are needed, not {type_name(value)}")
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size < least:
        raise refused(what, "it is empty")
    if size > most:
        raise refused(what, f"it has {size} bytes, the limit is {most}")
    return bytes(value)


def check_key(key: Any) -> bytes:
    return check_bytes("key", key, 1, MAX_KEY_BYTES)


def check_prefix(prefix: Any) -> bytes:
    return check_bytes("prefix", prefix, 0, MAX_KEY_BYTES)


def check_value(value: Any) -> bytes:
    return check_bytes("value", value)


def check_number(what: str, value: Any, least: int = 0, most: int = MAX_U64) -> int:
    """A whole number; True and False are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        # Python refuses to print a number of many thousand digits.
        shown = repr(value) if not isinstance(value, int) or value.bit_length() <= 128 else "one of more than 128 bits"
        raise refused(what, f"it must be a whole number from {least} to {most}, not {shown}")
    return int(value)


def check_count(what: str, value: Any, most: int = 2**63) -> int:
    """A count of at least one."""
    return check_number(what, value, 1, most)


def check_seconds(what: str, value: Any) -> float:
    """A time span in seconds; infinity is allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise refused(what, f"it must be a number of seconds, 0 or more, not {value!r}")
    return float(value)


def refused(what: str, why: str) -> Invalid:
    """The error for an argument that cannot be used. `why` is a sentence without its full stop."""
    return Invalid(f"{what}: {why}.", code="argument.refused", about=what, unchanged="everything")


def type_name(value: object) -> str:
    """The type of a refused argument, for a message."""
    return "None" if value is None else type(value).__name__
