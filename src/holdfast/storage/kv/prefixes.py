"""The range of keys that begin with a prefix, for media that scan by range."""

from __future__ import annotations


def end_of(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if every later key does, as with b"" and b"\\xff"."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None
