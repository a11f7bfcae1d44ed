"""Decoders of types, each made once and by one thread at a time.

msgspec looks into a type when it is first decoded, and keeps what it finds with the type. If two threads do that at the
same moment, one follows what the other has not set yet, and the process ends with a segmentation fault. So whatever is
decoded as a type of its own is decoded through here.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_looking = threading.Lock()


def json_decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    found = _json.get(kind)
    if found is None:
        with _looking:
            found = _json[kind] = msgspec.json.Decoder(kind)
    return found


def msgpack_decoder(kind: type[_T]) -> msgspec.msgpack.Decoder[_T]:
    found = _msgpack.get(kind)
    if found is None:
        with _looking:
            found = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return found


def converted(value: object, kind: type[_T]) -> _T:
    """What `msgspec.convert` makes of it."""
    json_decoder(kind)
    return msgspec.convert(value, kind)
