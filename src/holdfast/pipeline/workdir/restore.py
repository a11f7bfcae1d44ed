"""Restoring a workdir from a checkpoint, and comparing a workdir with a checkpoint."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import UnsetType

from holdfast.base.steps import step
from holdfast.checkpoints.batch_format import Batch
from holdfast.checkpoints.manifest import BatchEntry, BatchObject, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.pipeline.query.description import recorded_description
from holdfast.pipeline.workdir.addresses import read_part, to_local
from holdfast.pipeline.workdir.entries import Entries, Part, joined, live_entries, part_of_entry
from holdfast.pipeline.workdir.owner import WorkdirOwner, write_owner
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sparkdir.operator_metadata import Read, describes_state, stores_of_batch
from holdfast.sparkdir.state_files import files_for_batch, is_visible, missing_files, referred_names
from holdfast.storage.objects.store import ObjectStore

MAX_NAME = 255
MAX_PATH = 2000
AT_ONCE = 2
"""Batch objects in memory at a time."""

Data = TypeVar("Data")
Found = dict[str, tuple[Part, BatchEntry]]
"""The parts of files in the batch objects of a checkpoint, by the names of their entries."""


class Comparison(msgspec.Struct, frozen=True):
    """The result of comparing a workdir with a checkpoint."""

    difference: str | None
    """The first file that differs from the checkpoint, in words; None if none does."""
    same: dict[str, Entries]
    """Files identical to the checkpoint's, each with its entries in batch objects."""


def restore(
    workdir: Workdir,
    objects: ObjectStore,
    manifest: CheckpointManifest,
    owner: WorkdirOwner,
    still_ours: Callable[[], None] = lambda: None,
) -> dict[str, Entries]:
    """Replace the workdir by the files of a checkpoint, every byte verified. Returns the entries that hold each file.

    Guarantees: under the workdir's name there is always the old one, none, or the whole new one. `still_ours` is called
    before the old one is removed.
    Does not guarantee: that it survives a power cut; the next start compares it and restores it again if need be.
    """
    fresh = workdir.new_sibling()
    try:
        with step("workdir.fill", checkpoint_id=manifest.checkpoint_id):
            held = _fill(fresh, workdir, objects, manifest)
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
    return held


def compare(workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> Comparison:
    """Compare the workdir with a checkpoint, file by file, as far as Spark needs the files."""
    digests: dict[BatchEntry, bytes] = {}
    found: Found = {}
    contents: dict[str, bytes] = {}
    for batch, opened in _batches(objects, manifest):
        for name, part, entry, data in _entries(manifest, batch, _sized(opened)):
            found[name] = part, entry
            digests[entry] = hashlib.sha256(data).digest()
            if _is_archive(part.path):
                contents[part.path] = bytes(data)
    files = _files(manifest, found, contents.__getitem__)
    parts = {entry: part for part, entry in found.values()}
    same: dict[str, Entries] = {}
    difference: str | None = None
    for path in sorted(files):
        try:
            read = (hashlib.sha256(read_part(workdir, parts[entry])).digest() for entry in files[path])
            if all(digest == digests[entry] for digest, entry in zip(read, files[path], strict=True)):
                same[path] = files[path]
                continue
            problem = f"{path} is not what was captured"
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror}"
        except Corrupt as error:
            problem = error.message
        difference = difference or problem
    return Comparison(difference, same)


class Completeness:
    """Finds what checkpoints lack. Reads every batch object once, however many checkpoints need it."""

    def __init__(self, objects: ObjectStore) -> None:
        self._reading = _BatchReader(objects)
        self._known: dict[BatchObject, list[tuple[str, int, bytes]]] = {}

    def missing_in(self, manifest: CheckpointManifest) -> list[str]:
        """What Spark needs to run the batch of a checkpoint again, and the checkpoint does not hold."""
        found: Found = {}
        contents: dict[str, bytes] = {}
        for batch in manifest.needed_batches:
            if batch not in self._known:
                self._known[batch] = [
                    (name, len(data), bytes(data) if _is_archive(name) or describes_state(name) else b"")
                    for name, data in self._reading.read(batch).entries()
                ]
            for name, part, entry, data in _entries(manifest, batch, self._known[batch]):
                found[name], contents[part.path] = (part, entry), data
        files = _files(manifest, found, contents.__getitem__)
        stores = stores_of_batch(files, manifest.wal_position, contents.__getitem__)
        return missing_files(files, manifest.wal_position, stores, is_stateful=_is_stateful(manifest))


def _fill(root: Path, workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> dict[str, Entries]:
    filling = _Restore(root, workdir, objects, manifest)
    order = manifest.needed_batches
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-restore") as workers:
        for _ in workers.map(filling.unpack, range(len(order)), order):
            pass

    def read(path: str) -> bytes:
        return (root / path).read_bytes()

    files = _files(manifest, filling.found, read)
    for path in {part.path for part, _ in filling.found.values()} - files.keys():
        os.remove(root / path)  # of an object that is kept for some of its files
    stores = stores_of_batch(files, manifest.wal_position, read)
    missing = missing_files(files, manifest.wal_position, stores, is_stateful=_is_stateful(manifest))
    if missing:
        raise Corrupt(
            f"Checkpoint {manifest.checkpoint_id} does not hold {missing[0]}; Spark cannot resume without it.",
            code="checkpoint.incomplete",
            about=f"checkpoint {manifest.checkpoint_id}",
            next_step="restore the store from a copy; to begin anew, use another address",
        )
    return files


def _files(manifest: CheckpointManifest, found: Found, read: Read) -> dict[str, Entries]:
    """The files of a checkpoint, each with its entries.

    A checkpoint that did not record which entries count holds the files that Spark needs among all that are found.
    """
    files = joined(found.values())
    if not isinstance(manifest.own.live, UnsetType):
        return {path: entries for path, entries in files.items() if is_visible(path)}
    needed = files_for_batch(files, manifest.wal_position, lambda path: referred_names(read(path), path))
    return {path: files[path] for path in needed}


def _is_stateful(manifest: CheckpointManifest) -> bool:
    """Whether the query of a checkpoint keeps state, as far as it was recorded."""
    description = recorded_description(manifest.own.runtime)
    return description is not None and bool(description.state)


def _is_archive(path: str) -> bool:
    return path.endswith(".zip")


def _entries(
    manifest: CheckpointManifest, batch: BatchObject, entries: Iterable[tuple[str, int, Data]]
) -> Iterator[tuple[str, Part, BatchEntry, Data]]:
    """Of a batch object's entries (name, size, data) those of a checkpoint: name, part of a file, place and data."""
    live = live_entries(manifest, batch)
    for index, (name, size, data) in enumerate(entries):
        if live is None or index in live:
            part = part_of_entry(name, size)
            _check_path(part.path, batch)
            yield name, part, BatchEntry(batch, index), data


def _sized(opened: Batch) -> Iterator[tuple[str, int, memoryview]]:
    return ((name, len(data), data) for name, data in opened.entries())


class _Restore:
    """Unpacks batch objects, several at a time. If several hold the same entry, the last one in order counts."""

    def __init__(self, root: Path, workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> None:
        self._root = root
        self._workdir = workdir
        self._manifest = manifest
        self._reading = _BatchReader(objects)
        self._made: set[str] = set()
        self._locks: dict[str, threading.Lock] = {}
        self._places: dict[str, int] = {}
        self.found: Found = {}
        """What was written."""

    def unpack(self, place: int, batch: BatchObject) -> None:
        for name, part, entry, data in _entries(self._manifest, batch, _sized(self._reading.read(batch))):
            with self._locks.setdefault(part.path, threading.Lock()):
                if self._places.get(name, -1) < place:
                    self._write(part, data)
                    self._places[name], self.found[name] = place, (part, entry)

    def _write(self, part: Part, data: memoryview) -> None:
        target = os.path.join(self._root, part.path)
        folder = os.path.dirname(target)
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)
        content = to_local(self._workdir, part.path, bytes(data)) if "/_metadata/" in part.path else data
        if part.length == part.whole:
            with open(target, "wb") as file:  # buffered: it writes all or raises
                file.write(content)
        else:
            with open(os.open(target, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:  # other parts may be there
                file.seek(part.offset)
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

        Its SHA-256 was compared when the checkpoint was chosen. Now its own CRC-32C is verified, which takes a tenth of
        the time. Version 1 of the format has none, so there the SHA-256 is compared again.
        """
        body = self._fetch(batch)
        opened = Batch(body, about=batch.key) if len(body) == batch.bytes else None
        if opened is None or (opened.version == 1 and hashlib.sha256(body).hexdigest() != batch.sha256):
            raise Corrupt(
                f"Batch object {batch.key} is not what was written.",
                code="batch.checksum",
                about=batch.key,
                next_step="start the pipeline again: it goes back to the newest checkpoint that can be trusted",
            )
        return opened

    def _fetch(self, batch: BatchObject) -> memoryview:
        """The bytes, valid until the next call in this thread; one byte too many if the object is too long."""
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
            f"Checkpoint {manifest.checkpoint_id} names files that cannot be created: {error}.",
            code="batch.path",
            about=f"checkpoint {manifest.checkpoint_id}",
            next_step="restore the store from a copy; to begin anew, use another address",
        )
    return Unavailable(
        f"The workdir {workdir.path} cannot be rebuilt: {error.strerror or error}.",
        code="workdir.disk",
        about=str(workdir.path),
        unchanged="the store and every sink",
        next_step="make room or allow this user to write there, or pass another workdir; then start again",
    )


def _check_path(path: str, batch: BatchObject) -> None:
    """`Corrupt` unless a name from a batch object is a path below the workdir; never one outside of it."""
    parts = path.split("/")
    is_odd = any(part in (".", "..") or "\0" in part or "\\" in part for part in parts)
    if not all(parts) or is_odd or len(path) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts):
        raise Corrupt(
            f"Batch object {batch.key} names a file that a workdir cannot have: {path[:100]!r}.",
            code="batch.path",
            about=batch.key,
        )
