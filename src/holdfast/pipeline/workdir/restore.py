"""Restoring a workdir from a checkpoint, and comparing a workdir with a checkpoint."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from msgspec import UnsetType

from holdfast.base.steps import step
from holdfast.checkpoints.batch_format import Batch
from holdfast.checkpoints.manifest import BatchEntry, BatchObject, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.pipeline.query.description import recorded_description
from holdfast.pipeline.workdir import large_files
from holdfast.pipeline.workdir.addresses import read_part, to_local
from holdfast.pipeline.workdir.entries import Entries, Part, joined, live_entries, part_of_entry
from holdfast.pipeline.workdir.large_files import LargeFiles
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sparkdir.operator_metadata import describes_state, stores_of_batch
from holdfast.sparkdir.state_files import (
    ReferredNames,
    files_for_batch,
    is_archive,
    is_visible,
    missing_files,
    missing_shared_files,
    referred_names,
)
from holdfast.storage.files.directory import Bytes, Directory, TakesParts, TakesPieces
from holdfast.storage.objects.store import ObjectStore

MAX_NAME = 255
MAX_PATH = 2000
AT_ONCE = 2
"""Batch objects in memory at a time."""

Data = TypeVar("Data")
Found = dict[str, tuple[Part, BatchEntry]]
"""The parts of files in the batch objects of a checkpoint, by the names of their entries."""
Names = set[str] | Corrupt
"""The names that an archive of RocksDB refers to, kept in place of the archive; or why they cannot be read."""


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

    Guarantees and does not guarantee: see `Workdir.replace`.
    """

    def fill(fresh: Directory) -> dict[str, Entries]:
        with step("workdir.fill", checkpoint_id=manifest.checkpoint_id):
            return _fill(fresh, workdir, objects, manifest)

    try:
        return workdir.replace(fill, owner, still_ours)
    except OSError as error:
        raise _disk_trouble(error, workdir, manifest) from error


def compare(workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> Comparison:
    """Compare the workdir with a checkpoint, file by file, as far as Spark needs the files."""
    digests: dict[BatchEntry, bytes] = {}
    found: Found = {}
    names: dict[str, Names] = {}
    for batch, opened in _batches(objects, manifest):
        for name, part, entry, data in _entries(manifest, batch, _sized(opened)):
            found[name] = part, entry
            digests[entry] = hashlib.sha256(data).digest()
            if is_archive(part.path) and not _records_live(manifest):
                names[part.path] = _names_in(bytes(data), part.path)
    files = _files(manifest, found, lambda path: _known_names(names[path]))
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
        self._known: dict[BatchObject, list[tuple[str, int, bytes | Names]]] = {}
        """Per entry its name, its size and what is needed of its content: the names in an archive, of most nothing."""

    def missing_in(self, manifest: CheckpointManifest) -> list[str]:
        """What Spark needs to run the batch of a checkpoint again, and the checkpoint does not hold."""
        found: Found = {}
        contents: dict[str, bytes] = {}
        names: dict[str, Names] = {}
        for batch in manifest.needed_batches:
            if batch not in self._known:
                self._known[batch] = [
                    (name, len(data), _needed_of(name, data)) for name, data in self._reading.read(batch).entries()
                ]
            for name, part, entry, needed in _entries(manifest, batch, self._known[batch]):
                found[name] = part, entry
                if isinstance(needed, bytes):
                    contents[part.path] = needed
                else:
                    names[part.path] = needed
        files = _files(manifest, found, lambda path: _known_names(names[path]))
        stores = stores_of_batch(files, manifest.wal_position, contents.__getitem__)
        missing = missing_files(files, manifest.wal_position, stores, is_stateful=_is_stateful(manifest))
        return missing + missing_shared_files(files, lambda path: _known_names(names[path]))


def _fill(root: Directory, workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> dict[str, Entries]:
    with contextlib.closing(_Restore(root, workdir, objects, manifest)) as filling:
        order = manifest.needed_batches
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-restore") as workers:
            for _ in workers.map(filling.unpack, range(len(order)), order):
                pass

        files = _files(manifest, filling.found, filling.referred_names)
        for path in {part.path for part, _ in filling.found.values()} - files.keys():
            root.remove(path)  # of an object that is kept for some of its files
        filling.write_again(files)
    stores = stores_of_batch(files, manifest.wal_position, root.read)
    missing = missing_files(files, manifest.wal_position, stores, is_stateful=_is_stateful(manifest))
    missing += missing_shared_files(files, filling.referred_names)
    if missing:
        raise Corrupt(
            f"Checkpoint {manifest.checkpoint_id} does not hold {missing[0]}; Spark cannot resume without it.",
            code="checkpoint.incomplete",
            about=f"checkpoint {manifest.checkpoint_id}",
            next_step="restore the store from a copy; to begin anew, use another address",
        )
    return files


def _files(manifest: CheckpointManifest, found: Found, referred: ReferredNames) -> dict[str, Entries]:
    """The files of a checkpoint, each with its entries.

    A checkpoint that did not record which entries count holds the files that Spark needs among all that are found.
    """
    files = joined(found.values())
    if _records_live(manifest):
        return {path: entries for path, entries in files.items() if is_visible(path)}
    return {path: files[path] for path in files_for_batch(files, manifest.wal_position, referred)}


def _records_live(manifest: CheckpointManifest) -> bool:
    """Whether a checkpoint says itself which entries count, so that no archive has to be looked into."""
    return not isinstance(manifest.own.live, UnsetType)


def _is_stateful(manifest: CheckpointManifest) -> bool:
    """Whether the query of a checkpoint keeps state, as far as it was recorded."""
    description = recorded_description(manifest.own.runtime)
    return description is not None and bool(description.state)


def _needed_of(name: str, data: memoryview) -> bytes | Names:
    if is_archive(name):
        return _names_in(bytes(data), name)
    return bytes(data) if describes_state(name) else b""


def _names_in(archive: bytes, path: str) -> Names:
    try:
        return referred_names(archive, path)
    except Corrupt as error:  # of no concern unless the checkpoint needs this archive
        return Corrupt(error.message, code=error.code, about=error.about)  # a traceback would keep the archive


def _known_names(names: Names) -> set[str]:
    if isinstance(names, Corrupt):
        raise names
    return names


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

    def __init__(self, root: Directory, workdir: Workdir, objects: ObjectStore, manifest: CheckpointManifest) -> None:
        self._root = root
        self._address = workdir.written_address(root)
        self._manifest = manifest
        self._reading = _BatchReader(objects)
        self._large = LargeFiles(root) if isinstance(root, TakesPieces) else None
        # A checkpoint that says which entries count has each one once.
        self._order = contextlib.nullcontext() if _records_live(manifest) else threading.Lock()
        self._places: dict[str, int] = {}
        self.found: Found = {}
        """What was written."""
        self._names: dict[str, Names] = {}

    def referred_names(self, path: str) -> set[str]:
        """The names that an archive refers to. `Corrupt` if it cannot be read."""
        return _known_names(self._names[path])

    def close(self) -> None:
        """Give up files that are not whole."""
        if self._large:
            self._large.close()

    def unpack(self, place: int, batch: BatchObject) -> None:
        try:
            self._unpack(place, batch)
        except BaseException:
            if self._large:
                self._large.fail(place)
            raise

    def write_again(self, files: Mapping[str, Entries]) -> None:
        """Write those files in parts that could not be written as their parts came."""
        if self._large is None:
            return
        is_written = _records_live(self._manifest)
        for path, entries in files.items():
            if len(entries) > 1 and (not is_written or path in self._large.out_of_order):
                self._write_large(path, (self._data_of(entry) for entry in entries))

    def _unpack(self, place: int, batch: BatchObject) -> None:
        opened = self._reading.read(batch)
        with self._order:
            whole: list[tuple[str, Bytes]] = []
            parts: list[tuple[Part, Bytes]] = []
            for name, part, entry, data in _entries(self._manifest, batch, _sized(opened)):
                if self._places.get(name, -1) > place:
                    continue
                self._places[name], self.found[name] = place, (part, entry)
                if is_archive(part.path):
                    self._names[part.path] = _names_in(bytes(data), part.path)
                if part.length < part.whole:
                    parts.append((part, data))
                else:
                    whole.append((part.path, self._content(part.path, data)))
            self._write(place, whole, parts)

    def _write(self, place: int, whole: list[tuple[str, Bytes]], parts: list[tuple[Part, Bytes]]) -> None:
        if isinstance(self._root, TakesParts):
            for part, data in parts:
                self._root.write_part(part.path, part.offset, data)
        if self._large is None:
            self._root.write_new(whole)
            return
        if _records_live(self._manifest):  # else a later object may hold another part in place of this one
            self._large.write(place, parts)
        for path, data in (file for file in whole if len(file[1]) >= large_files.LARGE):
            self._write_large(path, [data])
        self._root.write_new(file for file in whole if len(file[1]) < large_files.LARGE)

    def _write_large(self, path: str, pieces: Iterable[Bytes]) -> None:
        assert isinstance(self._root, TakesPieces)
        file = self._root.new_file(path)
        try:
            for piece in pieces:
                file.write(piece)
            file.close()
        except BaseException:
            file.abandon()
            raise

    def _data_of(self, entry: BatchEntry) -> Bytes:
        opened = self._reading.read(entry.batch)
        return next(data for index, (_, data) in enumerate(opened.entries()) if index == entry.index)

    def _content(self, path: str, data: memoryview) -> Bytes:
        return to_local(self._address, path, bytes(data)) if "/_metadata/" in path else data


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
        for piece in self._objects.stream(batch.key):  # of a range of it the size would be asked for first
            part = memoryview(piece)[: wanted - at]
            buffer[at : at + len(part)] = part
            at += len(part)
            if at == wanted:
                break
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
        f"The workdir {workdir.address} cannot be rebuilt: {error.strerror or error}.",
        code="workdir.disk",
        about=workdir.address,
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
