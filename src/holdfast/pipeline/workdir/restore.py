"""Restoring a workdir from a checkpoint, and comparing a workdir with a checkpoint."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints.batch_format import Batch
from holdfast.checkpoints.manifest import BatchObject, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.pipeline.workdir.addresses import read_portable, to_local
from holdfast.pipeline.workdir.owner import WorkdirOwner, write_owner
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sparkdir.state_files import files_for_batch
from holdfast.storage.objects.store import ObjectStore

MAX_NAME = 255
MAX_PATH = 2000
AT_ONCE = 2
"""Batch objects in memory at a time."""


class Comparison(msgspec.Struct, frozen=True):
    """A workdir held against a checkpoint."""

    difference: str | None
    """The first file that differs from the checkpoint, in words; None if none does."""
    same: dict[str, BatchObject]
    """Files identical to the checkpoint's, each with the batch object that holds it."""


def restore(
    workdir: Workdir,
    objects: ObjectStore,
    manifest: CheckpointManifest,
    owner: WorkdirOwner,
    still_ours: Callable[[], None] = lambda: None,
) -> dict[str, BatchObject]:
    """Replace the workdir by what the checkpoint holds, every byte verified; the batch object that holds each file.

    Guarantees: under the workdir's name there is always the old one, none, or the whole new one. `still_ours` is asked
    before the old one goes.
    Does not guarantee: that it survives a power cut; the next start compares it and restores it again if need be.
    """
    fresh = workdir.new_sibling()
    try:
        with step("workdir.fill", checkpoint_id=manifest.checkpoint_id):
            holders = _fill(fresh, workdir, objects, manifest)
            write_owner(fresh, owner)
        still_ours()
        workdir.discard(still_ours)
        workdir.publish(fresh, still_ours)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise _disk_trouble(error, workdir, manifest) from error
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return holders


def compare(workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> Comparison:
    """Hold the workdir against what the checkpoint has of the files that Spark needs."""
    digests: dict[str, bytes] = {}
    holders: dict[str, BatchObject] = {}
    archives: dict[str, bytes] = {}
    for batch, opened in _batches(objects, manifest):
        for path, data in opened.entries():
            holders[_safe(path, batch)] = batch
            digests[path] = hashlib.sha256(data).digest()
            if path.endswith(".zip"):
                archives[path] = bytes(data)
    needed = files_for_batch(holders, manifest.wal_position, archives.__getitem__)
    same: dict[str, BatchObject] = {}
    difference: str | None = None
    for path in sorted(needed):
        try:
            found = read_portable(workdir, path)
        except OSError as error:
            difference = difference or f"{path} cannot be read: {error.strerror}"
            continue
        if hashlib.sha256(found).digest() == digests[path]:
            same[path] = holders[path]
        else:
            difference = difference or f"{path} is not what was captured"
    return Comparison(difference, same)


def _fill(root: Path, workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> dict[str, BatchObject]:
    filling = _Restore(root, workdir, objects)
    order = manifest.needed_batches
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-restore") as workers:
        for _ in workers.map(filling.unpack, range(len(order)), order):
            pass
    holders = {path: order[place] for path, place in filling.placed.items()}
    needed = files_for_batch(holders, manifest.wal_position, lambda path: (root / path).read_bytes())
    for path in holders.keys() - needed:  # a batch object that is kept for some of its files holds others as well
        os.remove(root / path)
    missing = {f"offsets/{manifest.wal_position}", "metadata"} - needed
    if missing:
        raise Corrupt(
            f"Checkpoint {manifest.checkpoint_id} does not hold {sorted(missing)[0]}; Spark cannot resume without it.",
            code="checkpoint.incomplete",
            about=f"checkpoint {manifest.checkpoint_id}",
            next_step="recover to an older checkpoint",
        )
    return {path: holders[path] for path in needed}


class _Restore:
    """Writes out batch objects, several at a time; of a file that several hold, what the last one has stays."""

    def __init__(self, root: Path, workdir: Workdir, objects: ObjectStore) -> None:
        self._root = root
        self._workdir = workdir
        self._reading = _BatchReader(objects)
        self._made: set[str] = set()
        self._locks: dict[str, threading.Lock] = {}
        self.placed: dict[str, int] = {}
        """Which batch object, by its place in the order, each file is from."""

    def unpack(self, place: int, batch: BatchObject) -> None:
        for path, data in self._reading.read(batch).entries():
            with self._locks.setdefault(_safe(path, batch), threading.Lock()):
                if self.placed.get(path, -1) < place:
                    self._write(path, data)
                    self.placed[path] = place

    def _write(self, path: str, data: memoryview) -> None:
        target = os.path.join(self._root, path)
        folder = os.path.dirname(target)
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)
        content = to_local(self._workdir, path, bytes(data)) if "/_metadata/" in path else data
        with open(target, "wb") as file:  # buffered: it writes all or raises
            file.write(content)


def _batches(objects: ObjectStore, manifest: CheckpointManifest) -> Iterator[tuple[BatchObject, Batch]]:
    """The batch objects of a checkpoint in order, verified, the next one read while this one is used."""
    wanted = manifest.needed_batches
    reading = _BatchReader(objects)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-restore") as readers:
        waiting = [readers.submit(reading.read, batch) for batch in wanted[:AT_ONCE]]
        for place, batch in enumerate(wanted):
            opened = waiting.pop(0).result()
            if place + AT_ONCE < len(wanted):
                waiting.append(readers.submit(reading.read, wanted[place + AT_ONCE]))
            yield batch, opened


class _BatchReader:
    """Reads batch objects into one buffer per thread: fresh memory for each doubles the time of a restore."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._own = threading.local()

    def read(self, batch: BatchObject) -> Batch:
        """A batch object that is what was written.

        Its SHA-256 was compared when the checkpoint was chosen. That what is read now still is the same, its own
        CRC-32C tells in a tenth of the time; the first version of the format has none.
        """
        body = self._fetch(batch)
        opened = Batch(body, about=batch.key) if len(body) == batch.bytes else None
        if opened is None or (opened.version == 1 and hashlib.sha256(body).hexdigest() != batch.sha256):
            raise Corrupt(
                f"Batch object {batch.key} is not what was written.",
                code="batch.checksum",
                about=batch.key,
                next_step="recover to an older checkpoint",
            )
        return opened

    def _fetch(self, batch: BatchObject) -> memoryview:
        """The bytes, valid until the next call in this thread; one too many if there are more than there should be."""
        buffer: bytearray = getattr(self._own, "buffer", bytearray())
        wanted = batch.bytes + 1
        if len(buffer) < wanted:
            self._own.buffer = buffer = bytearray(wanted)
        at = 0
        for piece in self._objects.stream(batch.key, length=wanted):
            buffer[at : at + len(piece)] = piece
            at += len(piece)
        return memoryview(buffer)[:at]


def _disk_trouble(error: OSError, workdir: Workdir, manifest: CheckpointManifest) -> HoldfastError:
    if error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Corrupt(
            f"Checkpoint {manifest.checkpoint_id} names files that cannot be: {error}.",
            code="batch.path",
            about=f"checkpoint {manifest.checkpoint_id}",
            next_step="recover to an older checkpoint",
        )
    return Unavailable(
        f"The workdir {workdir.path} cannot be rebuilt: {error.strerror or error}.",
        code="workdir.disk",
        about=str(workdir.path),
        unchanged="the store and every sink",
        next_step="make room or allow this user to write there, or pass another workdir; then start again",
    )


def _safe(path: str, batch: BatchObject) -> str:
    """A name from a batch object as a path below the workdir; never one outside of it."""
    parts = path.split("/")
    is_odd = any(part in (".", "..") or "\0" in part or "\\" in part for part in parts)
    if not all(parts) or is_odd or len(path) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts):
        raise Corrupt(f"Batch object {batch.key} names a file {path[:100]!r}.", code="batch.path", about=batch.key)
    return path
