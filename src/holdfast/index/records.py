"""The index's own records: which key each has, and how its value is sealed.

A value is a version byte, a body, and the CRC32C of key and both, so that a damaged value, and a good one under
the wrong key, are told from what was written. An id ends its key, so no two ids share one, whatever is in them.

    format          u16                                     how this index is laid out
    hash            u64                                     of the configuration the results were made with
    reset           flag, u64                               a reset is under way, and the hash to set at its end
    s/<source id>   flag, sequence u64, time u64, position  a source's checkpoint
    g/<number u64>  a gap as MessagePack                    what was passed over by decision

Numbers are big-endian, so that keys sort by them.
"""

from __future__ import annotations

import struct

import google_crc32c
import msgspec

from holdfast.base.codec import msgpack_decoder
from holdfast.errors import Corrupt, Invalid
from holdfast.index.checkpoint import SourceCheckpoint, StoredCheckpoint
from holdfast.index.gap import Gap

FORMAT = 1
VERSION = 1
FORMAT_KEY = b"format"
HASH_KEY = b"hash"
RESET_KEY = b"reset"
CHECKPOINTS = b"s/"
GAPS = b"g/"

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_MARKER = struct.Struct(">?Q")
_CHECKPOINT = struct.Struct(">?QQ")


def checkpoint_key(source_id: bytes) -> bytes:
    return CHECKPOINTS + source_id


def encode_checkpoint(key: bytes, sequence: int, position: bytes | None, written_ms: int) -> bytes:
    return _seal(key, _CHECKPOINT.pack(position is not None, sequence, written_ms) + (position or b""))


def decode_checkpoint(key: bytes, value: bytes, address: str) -> tuple[str, StoredCheckpoint]:
    """The source's id and its checkpoint."""
    try:
        source_id = key.removeprefix(CHECKPOINTS).decode()
    except UnicodeDecodeError:
        raise _corrupt(address, f"the checkpoint of a source ({key!r})", "its key is not text") from None
    what = f"the checkpoint of source {source_id!r}"
    body = _unseal(key, value, what, address)
    if len(body) < _CHECKPOINT.size:
        raise _corrupt(address, what, f"it has {len(body)} bytes")
    has_position, sequence, written_ms = _CHECKPOINT.unpack_from(body)
    position = body[_CHECKPOINT.size :] if has_position else None
    return source_id, StoredCheckpoint(SourceCheckpoint(sequence, position), written_ms)


def encode_hash(config_hash: int) -> bytes:
    return _seal(HASH_KEY, _U64.pack(config_hash))


def decode_hash(value: bytes, address: str) -> int:
    found: int = _number(_U64, HASH_KEY, value, "the configuration hash", address)[0]
    return found


def encode_format(number: int = FORMAT) -> bytes:
    return _seal(FORMAT_KEY, _U16.pack(number))


def decode_format(value: bytes, address: str) -> int:
    found: int = _number(_U16, FORMAT_KEY, value, "the record of its format", address)[0]
    return found


def encode_marker(config_hash: int | None) -> bytes:
    return _seal(RESET_KEY, _MARKER.pack(config_hash is not None, config_hash or 0))


def decode_marker(value: bytes, address: str) -> int | None:
    """The hash that the reset sets at its end, None if it leaves none."""
    has_hash, config_hash = _number(_MARKER, RESET_KEY, value, "the marker of a reset under way", address)
    return config_hash if has_hash else None


def gap_key(number: int) -> bytes:
    return GAPS + _U64.pack(number)


def gap_number(key: bytes) -> int:
    found: int = _U64.unpack(key.removeprefix(GAPS))[0]
    return found


def encode_gap(key: bytes, gap: Gap) -> bytes:
    return _seal(key, msgspec.msgpack.encode(gap))


def decode_gap(key: bytes, value: bytes, address: str) -> Gap:
    what = f"a recorded gap ({key!r})"
    body = _unseal(key, value, what, address)
    try:
        return msgpack_decoder(Gap).decode(body)
    except msgspec.MsgspecError as error:
        raise _corrupt(address, what, str(error)) from None


def _number(form: struct.Struct, key: bytes, value: bytes, what: str, address: str) -> tuple[int, ...]:
    body = _unseal(key, value, what, address)
    if len(body) != form.size:
        raise _corrupt(address, what, f"it has {len(body)} bytes, not {form.size}")
    return form.unpack(body)


def _seal(key: bytes, body: bytes) -> bytes:
    sealed = bytes((VERSION,)) + body
    return sealed + _U32.pack(google_crc32c.extend(google_crc32c.value(key), sealed))


def _unseal(key: bytes, value: bytes, what: str, address: str) -> bytes:
    sealed, checksum = value[:-4], value[-4:]
    if not sealed or _U32.pack(google_crc32c.extend(google_crc32c.value(key), sealed)) != checksum:
        raise _corrupt(address, what, "its checksum does not match")
    if sealed[0] > VERSION:
        raise newer(address, f"{what} has version {sealed[0]}, this release reads up to {VERSION}")
    return sealed[1:]


def newer(address: str, why: str) -> Invalid:
    return Invalid(
        f"{address} was written by a newer release of Holdfast: {why}.",
        code="index.newer",
        about=address,
        unchanged="the index",
        next_step="open it with that release, or install it here",
    )


def _corrupt(address: str, what: str, why: str) -> Corrupt:
    return Corrupt(
        f"{address}: {what} is damaged: {why.rstrip('.')}.",
        code="index.record",
        about=address,
        unchanged="the index",
        next_step="restore the index from a copy, or empty it with index.reset() and let the sources start over",
    )
