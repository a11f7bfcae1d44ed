"""The entries of batch objects: how a file is named in one, and which of them a checkpoint holds. Pure.

A file is one entry under its path. A large file is several, each under `path//offset/size`: the place of the part and
the size of the whole file. No path has an empty name in it, so no file can have such a name of its own.

A batch object is kept while a checkpoint needs one of its entries, so it may hold others that nothing needs any more.
The manifest says which ones count, as a bitmap over the entries in their order; an object that it has no bitmap for is
held whole. Paths, sizes and checksums are in the object itself.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator

import msgspec
from msgspec import UnsetType

from holdfast.checkpoints.manifest import BatchEntry, BatchObject, CheckpointManifest
from holdfast.errors import Corrupt

PART_BYTES = 32 << 20
"""A file with more bytes than this is split: each part is in memory as a whole, and a batch has a limit of its own."""

Entries = tuple[BatchEntry, ...]
"""What holds a file: one entry, or several in order if it is large."""

_PART = re.compile(r"(.+)//(0|[1-9]\d{0,18})/([1-9]\d{0,18})")


class Part(msgspec.Struct, frozen=True):
    """One entry of a file, which is all of it unless the file is large."""

    path: str
    offset: int
    length: int
    whole: int
    """The size of the file."""

    @property
    def name(self) -> str:
        """The name of its entry."""
        return self.path if self.length == self.whole else f"{self.path}//{self.offset}/{self.whole}"


def parts_of(path: str, size: int) -> Iterator[Part]:
    """The parts of a file, in order: all of about the same size, so that none is so small that it shares an object."""
    count = max(1, -(-size // PART_BYTES))
    length = max(1, -(-size // count))
    for offset in range(0, max(size, 1), length):
        yield Part(path, offset, min(length, size - offset), size)


def part_of_entry(name: str, length: int) -> Part:
    """The part of a file that an entry with this name and so many bytes is."""
    match = _PART.fullmatch(name)
    return Part(match[1], int(match[2]), length, int(match[3])) if match else Part(name, 0, length, length)


def joined(found: Iterable[tuple[Part, BatchEntry]]) -> dict[str, Entries]:
    """Every file with its entries, in order. `Corrupt` if a part is missing, or if there are several of the same."""
    files: dict[str, list[tuple[Part, BatchEntry]]] = defaultdict(list)
    for part, entry in found:
        files[part.path].append((part, entry))
    for path, parts in files.items():
        parts.sort(key=lambda pair: pair[0].offset)
        ends = [part.offset + part.length for part, _ in parts]
        starts, sizes = [part.offset for part, _ in parts], {part.whole for part, _ in parts}
        if starts != [0, *ends[:-1]] or sizes != {ends[-1]}:
            raise Corrupt(
                f"The parts of {path} do not make a whole file.", code="batch.path", about=parts[0][1].batch.key
            )
    return {path: tuple(entry for _, entry in parts) for path, parts in files.items()}


def bitmaps(entries: Iterable[BatchEntry]) -> dict[str, str]:
    """The bitmap of every batch object of which these entries are only some."""
    live: dict[BatchObject, set[int]] = defaultdict(set)
    for entry in entries:
        live[entry.batch].add(entry.index)
    return {batch.key: _bitmap(found) for batch, found in live.items() if len(found) < batch.entries}


def live_entries(manifest: CheckpointManifest, batch: BatchObject) -> Container[int] | None:
    """The places of the entries in a batch object that a checkpoint holds; None if it was not recorded.

    `Corrupt` if the record does not fit the object.
    """
    recorded = manifest.own.live
    if isinstance(recorded, UnsetType):
        return None
    if batch.key not in recorded:
        return range(batch.entries)
    try:
        bits = int.from_bytes(base64.b64decode(recorded[batch.key], validate=True), "little")
    except binascii.Error:
        bits = -1
    if not 0 < bits < 1 << batch.entries:
        raise Corrupt(
            f"Checkpoint {manifest.checkpoint_id} names other entries of {batch.key} than it has.",
            code="checkpoint.entries",
            about=f"checkpoint {manifest.checkpoint_id}",
            next_step="restore the store from a copy; to begin anew, use another address",
        )
    return {place for place in range(batch.entries) if bits >> place & 1}


def _bitmap(places: set[int]) -> str:
    bits = sum(1 << place for place in places)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
