"""Packing many small pieces of state into few batch objects.

State is added entry by entry, and each flush writes the entries as one batch object. A batch counts only once a
manifest lists it: a batch that a crash leaves unlisted is an orphan, which the clean-up removes.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints import batch_format
from holdfast.checkpoints.layout import batch_key
from holdfast.checkpoints.manifest import MAX_U64, BatchObject
from holdfast.errors import Conflict, Invalid
from holdfast.storage.objects import ObjectStore, open_objects
from holdfast.storage.objects.keys import check_key, check_prefix
from holdfast.storage.objects.store import Bytes, Chunks

DEFAULT_FLUSH_THRESHOLD = 8 * 1024 * 1024
READ_LIMIT = 2 * 1024**3
MAX_PARTS = 9999  # the most that four digits hold, so that names sort in the order of the flushes
_HASH_ON_THREAD_FROM = 1 << 20


class HasObjects(Protocol):
    """Anything that keeps its bytes in an `ObjectStore`, such as a checkpoint store."""

    @property
    def objects(self) -> ObjectStore: ...


@runtime_checkable
class HasLease(Protocol):
    """A checkpoint store that may have been claimed."""

    objects: ObjectStore

    def recheck_lease(self) -> None: ...


class BatchMetrics(msgspec.Struct):
    """Totals of one batcher since it was made: a live handle, which every flush moves on.

    Another thread may read it at any time. In the middle of a flush it may see one total moved on and another not yet.
    """

    batches_flushed: int = 0
    entries_flushed: int = 0
    bytes_before_compression: int = 0
    """Keys and data with their lengths, as they go into the compressor."""
    bytes_after_compression: int = 0
    """Whole objects, headers included."""
    put_count: int = 0
    """Objects that were created."""

    def snapshot(self) -> BatchMetrics:
        """The totals as they are now; later flushes do not change them."""
        return copy.copy(self)


class CheckpointBatcher:
    """Collects entries and writes them as batch objects, one per `flush`.

    Give every writer its own `prefix` (such as `nodes/a/`). Writers that share one never overwrite each other, but
    each has to probe for a free name.
    Does not guarantee: thread safety. It never removes an object that it wrote.

    `before_write` is called before every write and may raise to stop it. By default it checks the lease of a checkpoint
    store, and does nothing for a bare object store.
    """

    def __init__(
        self,
        objects_or_url: ObjectStore | HasObjects | str | os.PathLike[str],
        prefix: str = "",
        flush_threshold: int | None = None,
        *,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        threshold = DEFAULT_FLUSH_THRESHOLD if flush_threshold is None else flush_threshold
        if not _is_int(threshold) or threshold < 1:
            raise Invalid(
                f"A flush threshold is a positive number of bytes, not {threshold!r}.", code="batch.threshold"
            )
        self._prefix = check_prefix(prefix)
        check_key(batch_key(self._prefix, MAX_U64, MAX_PARTS))  # now, not at a later flush, if the prefix is too long
        self._objects = _objects_of(objects_or_url)
        self._threshold = threshold
        self._before_write = before_write or _lease_check_of(objects_or_url)
        self._packer = batch_format.Packer()
        self._flushed: dict[int, list[BatchObject]] = {}
        self._next_part: dict[int, int] = {}
        self._metrics = BatchMetrics()

    def __repr__(self) -> str:
        return f"CheckpointBatcher({self._objects.address!r}, {len(self)} entries, {self.buffer_size} bytes waiting)"

    def __len__(self) -> int:
        """Entries that wait for a flush."""
        return len(self._packer)

    @property
    def is_empty(self) -> bool:
        """Whether a flush would have nothing to do."""
        return not self._packer

    @property
    def buffer_size(self) -> int:
        """Bytes that wait for a flush, before compression: each entry's key and data, and eight for their lengths."""
        return self._packer.size

    @property
    def metrics(self) -> BatchMetrics:
        """The batcher's one live handle: hold it, and read it whenever you like."""
        return self._metrics

    def add(self, key: str, data: Bytes) -> None:
        """Take one entry into the buffer.

        Guarantees: the data are copied, so later changes to them do not reach the batch; when it raises, nothing has
        changed.
        `Invalid` if the key is in the buffer already, or if the batch would outgrow its format.
        """
        self._packer.add(key, data)

    def should_flush(self) -> bool:
        """Whether the buffer has reached the threshold."""
        return self._packer.size >= self._threshold

    def flush(self, epoch: int) -> BatchObject | None:
        """Write the buffer as one object of this epoch and empty it; None, and no request, if it was empty already.

        Guarantees: durable on return. No object is ever overwritten: a second flush in an epoch, another batcher's, or
        one after an attempt that failed gets the next part number. When it raises, the buffer is as it was.
        Does not guarantee: that part numbers have no gaps, nor that a flush that failed left nothing behind. Only
        objects that a manifest lists count; the others are orphans.
        """
        _check_epoch(epoch)
        if not self._packer:
            return None
        chunks = self._packer.encode()
        with _hashing(chunks) as sha256:
            part = self._store(epoch, chunks)
            size = sum(len(chunk) for chunk in chunks)
            stored = BatchObject(batch_key(self._prefix, epoch, part), size, sha256(), len(self._packer))
        self._next_part[epoch] = part + 1
        self._flushed.setdefault(epoch, []).append(stored)
        self._metrics.batches_flushed += 1
        self._metrics.entries_flushed += stored.entries
        self._metrics.bytes_before_compression += self._packer.size
        self._metrics.bytes_after_compression += stored.bytes
        self._metrics.put_count += 1
        self._packer.clear()
        return stored

    def flushed(self, epoch: int) -> list[BatchObject]:
        """The batch objects flushed for one epoch, in order. The epoch's manifest has to list them."""
        return list(self._flushed.get(epoch, ()))

    def forget(self, epoch: int) -> None:
        """Drop the records of this epoch and of all before it, once their manifests are saved.

        Without it a batcher that lives for months keeps a record of every object it ever wrote. A flush in a
        forgotten epoch is still safe; it only has to probe for its name again.
        """
        for old in [known for known in self._flushed if known <= epoch]:
            del self._flushed[old], self._next_part[old]

    def _store(self, epoch: int, chunks: Chunks) -> int:
        """Create the batch under the first free part number, and return that number."""
        for part in range(self._next_part.get(epoch, 1), MAX_PARTS + 1):
            key = batch_key(self._prefix, epoch, part)
            self._before_write()
            try:
                with step("batch.create", key=key):
                    self._objects.create(key, chunks)
                return part
            except Conflict:
                continue  # written by another writer, or by an attempt that died: a clean-up may remove it
        raise Conflict(
            f"Epoch {epoch} has {MAX_PARTS} batch objects under {self._prefix!r} already.",
            code="batch.parts",
            about=batch_key(self._prefix, epoch, MAX_PARTS),
            unchanged="the buffer and every object",
            next_step="raise the flush threshold, or give each writer its own prefix",
        )


def read_batch(objects: ObjectStore, key: str, *, limit: int = READ_LIMIT) -> batch_format.Batch:
    """Open one batch object. `Corrupt` if it has more than `limit` bytes, stored or decompressed; no more are read."""
    return batch_format.Batch(objects.read(key, limit=limit), about=key, limit=limit)


def _lease_check_of(where: object) -> Callable[[], None]:
    """The lease check of a checkpoint store; does nothing for a bare object store or an address."""
    check: Callable[[], None] = where.recheck_lease if isinstance(where, HasLease) else lambda: None
    return check


def _objects_of(where: ObjectStore | HasObjects | str | os.PathLike[str]) -> ObjectStore:
    if isinstance(where, str | os.PathLike):
        return open_objects(os.fspath(where))
    objects: Any = getattr(where, "objects", where)
    if not hasattr(objects, "create"):
        raise Invalid(
            f"A batcher writes to an address, a store or an ObjectStore, not to a {type(where).__name__}.",
            code="batch.objects",
        )
    return cast(ObjectStore, objects)


def _check_epoch(epoch: int) -> None:
    if not _is_int(epoch) or not 1 <= epoch <= MAX_U64:
        raise Invalid(f"An epoch is a number from 1 to 2**64 - 1, not {epoch!r}.", code="batch.epoch")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


@contextmanager
def _hashing(chunks: Chunks) -> Iterator[Callable[[], str]]:
    """A function that returns the SHA-256 of the chunks; a large body is hashed on another thread during the block."""
    if sum(len(chunk) for chunk in chunks) < _HASH_ON_THREAD_FROM:
        yield lambda: _sha256(chunks)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-sha256") as hasher:
        yield hasher.submit(_sha256, chunks).result


def _sha256(chunks: Chunks) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
