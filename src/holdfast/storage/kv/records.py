"""Seals Holdfast's own records: version byte, body, and the CRC32C of key, version and body.

The checksum detects a damaged value, and a valid value under the wrong key. Indexes and stores of events
use the same format. Values of the user (results, read models) are not sealed.
"""

from __future__ import annotations

import struct

import google_crc32c

from holdfast.storage.kv import errors
from holdfast.storage.kv.store import Kind

VERSION = 1
CHECKSUM = struct.Struct(">I")
_HEADER = bytes((VERSION,))


def seal(key: bytes, body: bytes) -> bytes:
    sealed = _HEADER + body
    return sealed + CHECKSUM.pack(google_crc32c.value(key + sealed))


def unseal(key: bytes, value: bytes, what: str, address: str, kind: Kind) -> bytes:
    """The body. `Corrupt`, naming the record by `what`, if it is damaged; `Invalid` if a newer release wrote it."""
    sealed = value[:-4]
    if not sealed or CHECKSUM.pack(google_crc32c.value(key + sealed)) != value[-4:]:
        raise errors.corrupt(kind, address, what, "its checksum does not match")
    if sealed[0] > VERSION:
        raise errors.newer(kind, address, f"{what} has version {sealed[0]}, this release reads up to {VERSION}")
    return sealed[1:]
