"""How the store's own records are sealed.

A value is a version byte, a body, and the CRC32C of space, key and both, so that a damaged value, and a good one under
the wrong key, are told from what was written. Cursors are bare numbers, and read models are the user's bytes.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

import google_crc32c
import msgspec

from holdfast.base.codec import msgpack_decoder
from holdfast.errors import Corrupt, Invalid

VERSION = 1
CURSOR = struct.Struct("<Q")
_U32 = struct.Struct(">I")
_HEADER = bytes((VERSION,))
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode


def seal(key: bytes, record: Any) -> bytes:
    sealed = _HEADER + _encode(record)
    return sealed + _U32.pack(google_crc32c.value(key + sealed))


def body(sealed: bytes) -> bytes:
    """The record itself, as MessagePack."""
    return sealed[1:-4]


def unsealed(rows: list[tuple[bytes, bytes]], kind: type[_T], what: str, address: str) -> list[_T]:
    """The records of many rows, at once: nothing is made for messages that are never needed."""
    decode, checksum, pack = msgpack_decoder(kind).decode, google_crc32c.value, _U32.pack
    found: list[_T] = []
    try:
        for key, value in rows:
            sealed = value[:-4]
            if sealed[0] != VERSION or pack(checksum(key + sealed)) != value[-4:]:
                break
            found.append(decode(sealed[1:]))
    except (IndexError, msgspec.MsgspecError):
        pass
    for key, value in rows[len(found) :]:  # from the first one that is not as it should be: with a message, slowly
        found.append(unseal(key, value, kind, f"{what} {int.from_bytes(key[-8:])}", address))
    return found


def unseal(key: bytes, value: bytes, kind: type[_T], what: str, address: str) -> _T:
    """The record, or `Corrupt` with `what` it is. `Invalid` if a newer release wrote it."""
    sealed = value[:-4]
    if not sealed or _U32.pack(google_crc32c.value(key + sealed)) != value[-4:]:
        raise corrupt(address, what, "its checksum does not match")
    if sealed[0] > VERSION:
        raise newer(address, f"{what} has version {sealed[0]}, this release reads up to {VERSION}")
    try:
        return msgpack_decoder(kind).decode(sealed[1:])
    except msgspec.MsgspecError as error:
        raise corrupt(address, what, str(error)) from None


def decode_cursor(value: bytes, name: str, stream: str, address: str) -> int:
    if len(value) != CURSOR.size:
        raise Corrupt(
            f"{address}: the cursor of projection {name!r} for stream {stream[:200]!r} is damaged: it has {len(value)} "
            f"bytes, not {CURSOR.size}.",
            code="cursor.damaged",
            about=f"projection {name!r}",
            unchanged="the store",
            next_step="rebuild the projection, or reset it",
        )
    number: int = CURSOR.unpack(value)[0]
    return number


def corrupt(address: str, what: str, why: str) -> Corrupt:
    return Corrupt(
        f"{address}: {what} is damaged: {why.rstrip('.')}.",
        code="store.record",
        about=address,
        unchanged="the store",
        next_step="restore the store from a copy",
    )


def newer(address: str, why: str) -> Invalid:
    return Invalid(
        f"{address} was written by a newer release of Holdfast: {why}.",
        code="store.newer",
        about=address,
        unchanged="the store",
        next_step="open it with that release, or install it here",
    )
