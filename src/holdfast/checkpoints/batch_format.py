"""The batch format LCB1: many small blobs as one compressed, checksummed object. No I/O here.

    "LCB1" | version u32 | entries u32 | raw size u32 | CRC-32C u32 | raw size u32 | LZ4 block
                                                        (version 1 has no CRC field)

Every integer is little endian. The CRC covers all that follows it. The block holds one frame per entry:
`key length u32, key as UTF-8, data length u32, data`. Version 2 is written, versions 1 and 2 are read.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator, KeysView

import google_crc32c
import lz4.block

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.storage.objects.store import Bytes

MAGIC = b"LCB1"
VERSION = 2
FRAME_OVERHEAD = 8
"""Bytes of a frame beyond its key and data: the two lengths."""

MAX_RAW = 0x7E00_0000
"""The most bytes that LZ4 packs into one block. Below 2**32, so no length field can ever wrap."""

_HEADER = struct.Struct("<4sIII")
_U32 = struct.Struct("<I")
_SIZED_HEADER_BYTES = {1: _HEADER.size, 2: _HEADER.size + _U32.size}
_BEST_RATIO = 255  # a length byte of an LZ4 block stands for 255 bytes at most
_CRC_PIECE = 1 << 20
_FIRST_MEMORY = 128 << 20  # address space; memory is taken only where it is written to
_KEPT_MEMORY = 16 << 20  # twice the usual flush threshold


class Packer:
    """The frames of a batch that is being filled, kept as they will be compressed.

    Guarantees: the data are copied once, when they are added; when `add` raises, nothing has changed.
    Does not guarantee: anything when used from several threads at once.

    Memory is mapped, not taken from the heap: filling fresh heap memory takes half as long as LZ4 itself, nearly all
    of it in page faults. A mapping grows without a copy up to 128 MiB, and is used again.
    """

    __slots__ = ("_keys", "_memory", "size")

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._memory: mmap.mmap | None = None
        self.size = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, data: Bytes) -> None:
        """Append one entry. `Invalid`: a key twice, or without a UTF-8 form; no bytes; over `MAX_RAW` in all."""
        try:
            name = key.encode()
        except (UnicodeEncodeError, AttributeError):
            raise Invalid(f"{key!r} cannot be a batch key: it is not Unicode text.", code="batch.key") from None
        try:
            view = memoryview(data)
        except TypeError:
            kind = type(data).__name__
            raise Invalid(f"A batch entry holds bytes, not {kind}.", code="batch.data", about=key) from None
        if key in self._keys:
            raise Invalid(
                f"The key {key!r} is in this batch already.",
                code="batch.duplicate-key",
                about=key,
                unchanged="the batch",
                next_step="flush before adding it again, or use another key",
            )
        size = self.size + FRAME_OVERHEAD + len(name) + view.nbytes
        if size > MAX_RAW:
            raise Invalid(
                f"With the entry {key!r} the batch would hold {size} bytes, and {MAX_RAW} is the most.",
                code="batch.too-large",
                about=key,
                unchanged="the batch",
                next_step="flush more often, or split the entry",
            )
        memory = self._memory_for(size)
        memory.seek(self.size)
        memory.write(b"".join((_U32.pack(len(name)), name, _U32.pack(view.nbytes))))
        memory.write(view if view.c_contiguous else view.tobytes())
        self._keys.add(key)
        self.size = size

    def encode(self) -> list[Bytes]:
        """The pieces of one batch with the entries added so far, in the order of adding. Does not remove the entries.

        Guarantees: `Batch` reads back exactly these entries, on any machine, and so does LaminarDB.
        Does not guarantee: the same bytes from another LZ4 release.
        """
        with memoryview(self._memory or b"") as memory, memory[: self.size] as frames:
            body: bytes = lz4.block.compress(frames, store_size=True)
        return [_HEADER.pack(MAGIC, VERSION, len(self), self.size) + _U32.pack(google_crc32c.value(body)), body]

    def clear(self) -> None:
        """Begin the next batch."""
        if self.size > _KEPT_MEMORY:
            self._memory = None
        self._keys = set()
        self.size = 0

    def _memory_for(self, size: int) -> mmap.mmap:
        old = self._memory
        if old is not None and size <= len(old):
            return old
        memory = _mapped(max(size, _FIRST_MEMORY if old is None else 2 * len(old)))
        if old is not None:  # not resized: that works on Linux alone
            with memoryview(old) as whole, whole[: self.size] as frames:
                memory.write(frames)
        self._memory = memory
        return memory


def encode(entries: Iterable[tuple[str, Bytes]]) -> list[Bytes]:
    """Pack entries, in their order, into the pieces of one batch, as a `Packer` does."""
    packer = Packer()
    for key, data in entries:
        packer.add(key, data)
    return packer.encode()


def decode(body: Bytes, *, about: str, limit: int = MAX_RAW) -> list[tuple[str, bytes]]:
    """All entries of a batch, in the order they were written. Fails as `Batch` does."""
    return [(key, bytes(data)) for key, data in Batch(body, about=about, limit=limit).entries()]


class Batch:
    """A batch opened for reading: decompressed once, indexed once, then read by key without copying.

    Guarantees: what was opened is whole. Magic, version, CRC, both sizes, the number of entries and the bounds
    of every frame were checked, and every key is unique. No size is believed before it is checked: nothing is
    allocated for more than `limit` bytes, nor for more than a block of this length can hold.
    Does not guarantee: for version 1, which has no CRC, that the data are those that were written.
    `Corrupt`: anything else, with a code that says which check failed. `about` names the object in messages.
    """

    __slots__ = ("_about", "_frames", "_raw", "version")

    def __init__(self, body: Bytes, *, about: str, limit: int = MAX_RAW) -> None:
        self._about = about
        view = memoryview(body).cast("B")
        self.version, count, size, block = self._check_header(view)
        if count * FRAME_OVERHEAD > size:
            raise self._corrupt("size", f"it claims {count} entries in {size} bytes")
        if size > min(limit, MAX_RAW):
            raise self._corrupt("size", f"its content claims {size} bytes, and the limit is {min(limit, MAX_RAW)}")
        if size > _BEST_RATIO * len(block):
            raise self._corrupt("size", f"{len(block)} compressed bytes cannot hold the {size} bytes it claims")
        try:
            self._raw = memoryview(lz4.block.decompress(block, uncompressed_size=size))
        except (lz4.block.LZ4BlockError, ValueError) as problem:
            raise self._corrupt("lz4", f"its content cannot be decompressed ({problem})") from None
        if len(self._raw) != size:
            raise self._corrupt("lz4", f"it holds {len(self._raw)} bytes of content and claims {size}")
        self._frames = self._index(count)

    def __len__(self) -> int:
        return len(self._frames)

    def __contains__(self, key: object) -> bool:
        return key in self._frames

    def keys(self) -> KeysView[str]:
        """Every key, in the order they were written."""
        return self._frames.keys()

    def read(self, key: str) -> memoryview:
        """The data of one entry, as a read-only view that keeps the whole batch in memory while it is held."""
        try:
            return self._raw[self._frames[key]]
        except KeyError:
            raise NotFound(f"There is no entry {key!r} in the batch.", code="batch.entry", about=self._about) from None

    def entries(self) -> Iterator[tuple[str, memoryview]]:
        """Every key with its data, in the order they were written."""
        return ((key, self._raw[place]) for key, place in self._frames.items())

    def _check_header(self, view: memoryview) -> tuple[int, int, int, memoryview]:
        if len(view) < _HEADER.size:
            raise self._corrupt("short", f"it has {len(view)} bytes, less than a header")
        magic, version, count, size = _HEADER.unpack_from(view)
        if magic != MAGIC:
            raise self._corrupt("magic", f"it begins with {magic!r} instead of {MAGIC!r}")
        if version not in _SIZED_HEADER_BYTES:
            raise self._corrupt("version", f"version {version} is either damage or newer than this release can read")
        body = view[_SIZED_HEADER_BYTES[version] :]
        if len(body) <= _U32.size:  # even an empty block takes one byte
            raise self._corrupt("short", f"it has {len(view)} bytes and ends before its content")
        if version > 1:
            (expected,) = _U32.unpack_from(view, _HEADER.size)
            found = _crc32c(body)
            if found != expected:
                raise self._corrupt("crc", f"its CRC-32C is {found:08x}, and {expected:08x} was recorded")
        (inner,) = _U32.unpack_from(body)
        if inner != size:
            raise self._corrupt("size", f"its header claims {size} bytes of content, its body {inner}")
        return version, count, size, body[_U32.size :]

    def _index(self, count: int) -> dict[str, slice]:
        raw, end, at = self._raw, len(self._raw), 0
        frames: dict[str, slice] = {}
        while at < end:
            if len(frames) == count:
                raise self._corrupt("frames", f"{end - at} bytes follow the last of its {count} entries")
            start, at = at, self._skip(at, "key")
            try:
                key = str(raw[start + _U32.size : at], "utf-8")
            except UnicodeDecodeError:
                raise self._corrupt("frames", f"the key at byte {start} is not UTF-8") from None
            if key in frames:
                raise self._corrupt("frames", f"the key {key!r} is there twice")
            start, at = at, self._skip(at, "data")
            frames[key] = slice(start + _U32.size, at)
        if len(frames) != count:
            raise self._corrupt("frames", f"it claims {count} entries and holds {len(frames)}")
        return frames

    def _skip(self, at: int, what: str) -> int:
        """The end of the length-prefixed field that begins at byte `at`."""
        left = len(self._raw) - at - _U32.size
        if left < 0:
            raise self._corrupt("frames", f"it ends inside the length of the {what} at byte {at}")
        (length,) = _U32.unpack_from(self._raw, at)
        if length > left:
            raise self._corrupt("frames", f"the {what} at byte {at} claims {length} bytes, and {left} are left")
        return int(at + _U32.size + length)

    def _corrupt(self, check: str, problem: str) -> Corrupt:
        return Corrupt(f"The batch cannot be used: {problem}.", code=f"batch.{check}", about=self._about)


def _mapped(capacity: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as problem:
        raise MemoryError(f"no memory for a batch of {capacity} bytes: {problem}") from None


def _crc32c(body: memoryview) -> int:
    # The library takes nothing but `bytes`: small pieces spare a second copy of the body.
    checksum = 0
    for start in range(0, len(body), _CRC_PIECE):
        checksum = google_crc32c.extend(checksum, bytes(body[start : start + _CRC_PIECE]))
    return checksum
