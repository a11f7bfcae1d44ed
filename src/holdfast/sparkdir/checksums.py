"""Hadoop's hidden checksum files, `.name.crc` beside `name`. They cover files that no checkpoint holds yet.

Spark writes them on a local disk, and does not verify them when it reads its logs.

    "crc" NUL | bytes per checksum u32 | CRC-32 u32 of each such piece of the file      (big endian)
"""

from __future__ import annotations

import posixpath
import struct
import zlib
from collections.abc import Iterable

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"


def checksum_path(path: str) -> str:
    """The path of a file's checksum file, which may not exist."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.crc")


def matches_checksum(data: bytes, checksum_file: bytes) -> bool:
    """Whether a file's bytes are those that its checksum file was written for."""
    if len(checksum_file) < _HEADER.size:
        return False
    magic, step = _HEADER.unpack_from(checksum_file)
    if magic != _MAGIC or not 0 < step <= 1 << 24:
        return False
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    return checksum_file[_HEADER.size :] == b"".join(struct.pack(">I", zlib.crc32(piece)) for piece in pieces)


def orphaned_checksums(names: Iterable[str]) -> set[str]:
    """Of the names in one folder: the files that are gone while their checksum files are still there."""
    there = set(names)
    checked = {name[1:-4] for name in there if name.startswith(".") and name.endswith(".crc")}
    return {name for name in checked - there if not name.startswith(".")}
