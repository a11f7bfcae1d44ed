"""Decoders of types, each made once and by one thread at a time.

msgspec inspects a type when it is first decoded, and caches the result on the type. If two threads do that at the same
moment, one follows a pointer that the other has not set yet, and the process dies of a segmentation fault. So all code
that decodes into a struct gets its decoder here.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_inspecting = threading.Lock()


def json_decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    found = _json.get(kind)
    if found is None:
        with _inspecting:
            found = _json[kind] = msgspec.json.Decoder(kind)
    return found


def msgpack_decoder(kind: type[_T]) -> msgspec.msgpack.Decoder[_T]:
    found = _msgpack.get(kind)
    if found is None:
        with _inspecting:
            found = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return found


def converted(value: object, kind: type[_T]) -> _T:
    """`msgspec.convert`, safe against a first use in two threads."""
    json_decoder(kind)
    return msgspec.convert(value, kind)
