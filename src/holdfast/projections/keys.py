"""Which key holds what. On SlateDB each map is a prefix of one key space; numbers in keys sort by their bytes.

    events    g/<position>                       a sealed event
    index     e/<length><stream><sequence>       its position
    heads     si/<stream>                        how many events a stream has, sealed
    cursors   cp/<projection>/<stream>           u64 little-endian: the last event of the stream in the read model
    shadows   cs/<projection>/<build>/<stream>   the same for a read model that is being rebuilt
    views     v/<projection>/<build>/<key>       read models
    letters   d/<projection>/<build>/<position>  events that could not be handled
    meta      m/...                              the store's head, states, leases

A projection's name is escaped and holds no slash, a stream's ends its key or has its length before it: no two of them
share a key, whatever is in them.
"""

from __future__ import annotations

import struct

from holdfast.projections.backend import Space

PREFIXES: dict[Space, bytes] = {
    "events": b"g/",
    "index": b"e/",
    "heads": b"si/",
    "cursors": b"cp/",
    "shadows": b"cs/",
    "views": b"v/",
    "letters": b"d/",
    "meta": b"m/",
}
FORMAT = b"format"
HEAD = b"head"
STATES = b"p/"
NEXT_STATES = b"b/"
LEASES = b"l/"

NUMBER = struct.Struct(">Q")
_LENGTH = struct.Struct(">H")


def index_prefix(stream: bytes) -> bytes:
    return _LENGTH.pack(len(stream)) + stream


def of_build(name: bytes, build: int) -> bytes:
    """What the keys of one build of a projection begin with, in `shadows`, `views` and `letters`."""
    return name + b"/" + NUMBER.pack(build) + b"/"


def end_of(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if every later key does."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None


def unescaped(name: bytes) -> str:
    return name.replace(b"%2F", b"/").replace(b"%25", b"%").decode()
