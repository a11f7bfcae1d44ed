"""Keyspaces, keys and records of a store of events and projections. Numbers in keys sort by their bytes.

    events    g/<position>                       a sealed event
    index     e/<length><stream><sequence>       its position
    heads     si/<stream>                        how many events a stream has, sealed
    cursors   cp/<projection>/<stream>           u64 little-endian: the last event of the stream in the read model
    shadows   cs/<projection>/<build>/<stream>   the same for a read model that is being rebuilt
    views     v/<projection>/<build>/<key>       read models
    letters   d/<projection>/<build>/<position>  events that could not be handled
    meta      m/...                              the last position, states of projections, leases of workers

The prefixes are those of SlateDB and RocksDB, where all keyspaces share one map. A projection's name is escaped and
holds no slash; a stream's name ends its key or follows its own length. So no two names share a key, whatever bytes
they contain.

Our own records are MessagePack, sealed with a version and a checksum. Cursors are bare numbers, and read models are the
user's bytes.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.base.arguments import check_text, refused
from holdfast.base.codec import msgpack_decoder
from holdfast.errors import Corrupt, Invalid
from holdfast.storage.kv import errors, records
from holdfast.storage.kv.store import Keyspace, Row, Schema

MAX_STREAM_BYTES = 40_000
MAX_NAME_BYTES = 20_000
"""Limit for the escaped name of a projection, in which `/` and `%` take three bytes each. A cursor's key holds the
names of a projection and of a stream, and a key in SlateDB has at most 65,535 bytes: hence the two limits."""

_PREFIXES = {
    "events": b"g/",
    "index": b"e/",
    "heads": b"si/",
    "cursors": b"cp/",
    "shadows": b"cs/",
    "views": b"v/",
    "letters": b"d/",
    "meta": b"m/",
}
SCHEMA = Schema(
    kind="store",
    # On SQLite a read model's tables are in the same database, so our tables are prefixed with `holdfast_`.
    keyspaces=tuple(Keyspace(name, f"holdfast_{name}", prefix) for name, prefix in _PREFIXES.items()),
    application_id=0x48664573,  # "HfEs"
    version=1,
    # A batch touches one page per stream: the cache must hold them all, and the write-ahead log several batches.
    settings=("cache_size = -65536", "wal_autocheckpoint = 16384"),
    page_size=2048,
)
"""The layout of a store of events in its backend."""

FORMAT = b"format"
HEAD = b"head"
STATES = b"p/"
NEXT_STATES = b"b/"
LEASES = b"l/"

NUMBER = struct.Struct(">Q")
CURSOR = struct.Struct("<Q")
_LENGTH = struct.Struct(">H")
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode


def check_stream(stream: Any) -> bytes:
    """A stream's name as UTF-8: any text that is not empty, up to 40,000 bytes."""
    return check_text("stream", stream, MAX_STREAM_BYTES)


def check_name(name: Any) -> bytes:
    """A projection's name as used in keys: UTF-8 with `/` and `%` escaped, so that no name holds a separator."""
    encoded = check_text("projection", name, MAX_NAME_BYTES).replace(b"%", b"%25").replace(b"/", b"%2F")
    if len(encoded) > MAX_NAME_BYTES:
        raise refused("projection", f"its name has {len(encoded)} bytes when escaped, the limit is {MAX_NAME_BYTES}")
    return encoded


def unescaped(name: bytes) -> str:
    return name.replace(b"%2F", b"/").replace(b"%25", b"%").decode()


def index_prefix(stream: bytes) -> bytes:
    return _LENGTH.pack(len(stream)) + stream


def of_build(name: bytes, build: int) -> bytes:
    """The prefix of the keys of one build of a projection, in `shadows`, `views` and `letters`."""
    return name + b"/" + NUMBER.pack(build) + b"/"


def seal(key: bytes, record: Any) -> bytes:
    return records.seal(key, _encode(record))


def unseal(key: bytes, value: bytes, kind: type[_T], what: str, address: str) -> _T:
    """The record. `Corrupt`, naming the record by `what`, if it is damaged; `Invalid` if a newer release wrote it."""
    body = records.unseal(key, value, what, address, "store")
    try:
        return msgpack_decoder(kind).decode(body)
    except msgspec.MsgspecError as error:
        raise corrupt(address, what, str(error)) from None


def unseal_many(rows: Iterable[Row], kind: type[_T], what: str, address: str) -> list[_T]:
    """The records of many rows. The name of a record is only formatted if it is damaged."""
    rows = list(rows)
    decode, unsealed = msgpack_decoder(kind).decode, records.unseal
    found: list[_T] = []
    with contextlib.suppress(Corrupt, Invalid, msgspec.MsgspecError):
        for key, value in rows:
            found.append(decode(unsealed(key, value, what, address, "store")))
    for key, value in rows[len(found) :]:  # again from the first damaged record on, which raises
        found.append(unseal(key, value, kind, f"{what} {int.from_bytes(key[-8:])}", address))
    return found


def body_of(sealed: bytes) -> bytes:
    """The MessagePack record in a sealed value whose checksum was verified before."""
    return sealed[1:-4]


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
    return errors.corrupt("store", address, what, why)
