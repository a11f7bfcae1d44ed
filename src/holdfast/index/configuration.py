"""One number for a configuration: the same in every process, on every machine, in every release.

Each value becomes a tag, the length of what follows as eight bytes, and its content: `n` None, `t` and `f` the two
truths (empty), `i` an integer in hexadecimal digits, `d` a float as eight bytes, `s` text as UTF-8, `b` bytes, `l` a
list or tuple (its items), `u` a set (its items, sorted as bytes), `m` a dict (key, value, key, value, sorted by key).
The hash is the first eight bytes of the SHA-256 of that, as a big-endian number.

So the order of dicts and sets means nothing and that of lists does; 1, 1.0, True and "1" are four different things; and
0.0 and -0.0 are one, as are all NaNs.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any

from holdfast.index.arguments import refused

_LENGTH = struct.Struct(">Q")
_FLOAT = struct.Struct(">d")
_NAN = _FLOAT.pack(math.nan)


def config_hash(config: Any) -> int:
    """A stable 64-bit hash of plain data: None, bool, int, float, str, bytes; lists, tuples, sets and dicts of them."""
    try:
        return int.from_bytes(hashlib.sha256(_encode(config)).digest()[:8], "big")
    except RecursionError:
        raise refused("config", "it is nested too deeply, or contains itself") from None


def _encode(value: Any) -> bytes:
    match value:
        case None:
            return _tagged(b"n")
        case bool():
            return _tagged(b"t" if value else b"f")
        case int():
            return _tagged(b"i", format(int(value), "x").encode())
        case float():
            return _tagged(b"d", _NAN if math.isnan(value) else _FLOAT.pack(value + 0.0))
        case str():
            try:
                return _tagged(b"s", value.encode())
            except UnicodeEncodeError:
                raise refused("config", f"{value[:40]!r} is not valid Unicode") from None
        case bytes() | bytearray():
            return _tagged(b"b", bytes(value))
        case list() | tuple():
            return _tagged(b"l", b"".join(map(_encode, value)))
        case set() | frozenset():
            return _tagged(b"u", b"".join(sorted(map(_encode, value))))
        case dict():
            pairs = sorted((_encode(key), _encode(item)) for key, item in value.items())
            return _tagged(b"m", b"".join(key + item for key, item in pairs))
    raise refused(
        "config",
        f"a {type(value).__name__} is not plain data: use None, bool, int, float, str, bytes, "
        "and lists, tuples, sets and dicts of them",
    )


def _tagged(tag: bytes, content: bytes = b"") -> bytes:
    return tag + _LENGTH.pack(len(content)) + content
