"""Hadoop's hidden checksum files, `.name.crc` beside `name`: the only word on files that no checkpoint holds yet.

Spark writes them on a local disk and does not look at them when it reads its logs.

    "crc" NUL | bytes per checksum u32 | CRC-32 u32 of each such piece of the file      (big endian)
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"


def checksum_file(path: Path) -> Path:
    """Where the checksums of a file are, if there are any."""
    return path.with_name(f".{path.name}.crc")


def differs_from_checksum(path: Path) -> bool:
    """Whether a file is not what its checksum file says. False if it has none."""
    try:
        sums = checksum_file(path).read_bytes()
        data = path.read_bytes()
    except OSError:
        return False
    if len(sums) < _HEADER.size:
        return True
    magic, step = _HEADER.unpack_from(sums)
    if magic != _MAGIC or not 0 < step <= 1 << 24:
        return True
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    return sums[_HEADER.size :] != b"".join(struct.pack(">I", zlib.crc32(piece)) for piece in pieces)


def orphaned_checksums(folder: Path) -> set[str]:
    """The names of files that are gone while their checksums are still there."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return set()
    vouched = {name[1:-4] for name in names if name.startswith(".") and name.endswith(".crc")}
    return {name for name in vouched - names if not name.startswith(".")}
