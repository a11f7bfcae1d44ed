"""The keyspaces of an index, and the keys and values of its own records.

Values are sealed by `holdfast.storage.kv.records`. A source id is the end of its key, so no two ids share a key,
whatever characters they contain. `results` holds the results as given. `meta` holds:

    format          u16                                     the version of this layout
    hash            u64                                     of the configuration the results were made with
    columns         JSON                                    the columns of the results, as Spark writes a schema
    reset           flag, u64                               a reset is under way, and the hash to set at its end
    s/<source id>   flag, sequence u64, time u64, position  a source's checkpoint
    g/<number u64>  a gap as MessagePack                    changes that were skipped on purpose

Numbers are big-endian, so that keys sort by them.
"""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from holdfast.base.codec import msgpack_decoder
from holdfast.storage.kv.errors import corrupt
from holdfast.storage.kv.records import seal, unseal
from holdfast.storage.kv.store import Keyspace, Schema

SCHEMA = Schema(
    kind="index",
    keyspaces=(Keyspace("meta", "meta", b"m"), Keyspace("results", "results", b"r")),
    application_id=0x48664978,  # "HfIx"
    version=1,
    # An epoch rewrites rows all over the index: with less, SQLite writes pages to its log several times.
    settings=("cache_size = -65536",),
)
FORMAT = 1
FORMAT_KEY = b"format"
HASH_KEY = b"hash"
COLUMNS_KEY = b"columns"
RESET_KEY = b"reset"
CHECKPOINTS = b"s/"
GAPS = b"g/"

_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
_MARKER = struct.Struct(">?Q")
_CHECKPOINT = struct.Struct(">?QQ")


class SourceCheckpoint(Struct, frozen=True):
    """The last change of a source that is in the index, and the position from which the source continues."""

    sequence: int
    """The sequence of the last applied change, as the source counts them."""
    source_position: bytes | None = None
    """Opaque bytes from which the source can continue. None: the source gave no position."""


class StoredCheckpoint(Struct, frozen=True):
    """A checkpoint with the time it was staged, for status displays."""

    checkpoint: SourceCheckpoint
    written_ms: int
    """When it was staged, in milliseconds since 1970."""


class Gap(Struct, frozen=True):
    """Changes of one source that are not in the index and never will be, because a caller chose to skip them."""

    source_id: str
    from_position: bytes | None
    """All changes up to here are in the index; None: the source had no position."""
    to_position: bytes | None
    """All changes from here on are; None: from wherever the source started again."""
    when_ms: int
    """When this was decided, in milliseconds since 1970."""
    why: str


def checkpoint_key(source_id: bytes) -> bytes:
    return CHECKPOINTS + source_id


def encode_checkpoint(key: bytes, sequence: int, position: bytes | None, written_ms: int) -> bytes:
    return seal(key, _CHECKPOINT.pack(position is not None, sequence, written_ms) + (position or b""))


def decode_checkpoint(key: bytes, value: bytes, address: str) -> tuple[str, StoredCheckpoint]:
    """The source's id and its checkpoint."""
    try:
        source_id = key.removeprefix(CHECKPOINTS).decode()
    except UnicodeDecodeError:
        raise corrupt("index", address, f"the checkpoint of a source ({key!r})", "its key is not text") from None
    what = f"the checkpoint of source {source_id!r}"
    body = unseal(key, value, what, address, "index")
    if len(body) < _CHECKPOINT.size:
        raise corrupt("index", address, what, f"it has {len(body)} bytes")
    has_position, sequence, written_ms = _CHECKPOINT.unpack_from(body)
    position = body[_CHECKPOINT.size :] if has_position else None
    return source_id, StoredCheckpoint(SourceCheckpoint(sequence, position), written_ms)


def encode_hash(config_hash: int) -> bytes:
    return seal(HASH_KEY, _U64.pack(config_hash))


def decode_hash(value: bytes, address: str) -> int:
    found: int = _number(_U64, HASH_KEY, value, "the configuration hash", address)[0]
    return found


def encode_columns(columns: str) -> bytes:
    return seal(COLUMNS_KEY, columns.encode())


def decode_columns(value: bytes, address: str) -> str:
    return unseal(COLUMNS_KEY, value, "the record of its columns", address, "index").decode()


def encode_format(number: int = FORMAT) -> bytes:
    return seal(FORMAT_KEY, _U16.pack(number))


def decode_format(value: bytes, address: str) -> int:
    found: int = _number(_U16, FORMAT_KEY, value, "the record of its format", address)[0]
    return found


def encode_marker(config_hash: int | None) -> bytes:
    return seal(RESET_KEY, _MARKER.pack(config_hash is not None, config_hash or 0))


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
    return seal(key, msgspec.msgpack.encode(gap))


def decode_gap(key: bytes, value: bytes, address: str) -> Gap:
    what = f"a recorded gap ({key!r})"
    body = unseal(key, value, what, address, "index")
    try:
        return msgpack_decoder(Gap).decode(body)
    except msgspec.MsgspecError as error:
        raise corrupt("index", address, what, str(error)) from None


def _number(form: struct.Struct, key: bytes, value: bytes, what: str, address: str) -> tuple[int, ...]:
    body = unseal(key, value, what, address, "index")
    if len(body) != form.size:
        raise corrupt("index", address, what, f"it has {len(body)} bytes, not {form.size}")
    return form.unpack(body)
