"""From a checkpoint back to a workdir, and the question whether a workdir still is what was captured."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from holdfast.checkpoints.lcb1 import Batch
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.manifest import BatchObject, CheckpointManifest
from holdfast.objects.medium import Objects
from holdfast.spark.needed import needed_files
from holdfast.spark.workdir import MARKER, Belonging, Workdir, from_captured
from holdfast.steps import step

MAX_NAME = 255
MAX_PATH = 2000
AT_ONCE = 2
"""Batch objects in memory at a time: one is read while the other is written out."""


class Contents(msgspec.Struct, frozen=True):
    """The files of a checkpoint: which batch object holds each, the newest where several do."""

    holders: dict[str, BatchObject]
    order: list[BatchObject]


class Comparison(msgspec.Struct, frozen=True):
    """A workdir held against a checkpoint."""

    difference: str | None
    """The first file that is not as it was captured, in words; None if all are."""
    same: dict[str, BatchObject]
    """The files that are, and what holds them."""
    contents: Contents


def rebuild(
    workdir: Workdir,
    objects: Objects,
    manifest: CheckpointManifest,
    owner: Belonging,
    before_publish: Callable[[], None] = lambda: None,
) -> Contents:
    """Replace the workdir by what the checkpoint holds, every byte verified on the way.

    Guarantees: under the workdir's name there is always the old one, none, or the whole new one.
    Does not guarantee: that it survives a power cut; a start looks at it again and rebuilds it if need be.
    """
    fresh = workdir.new_sibling()
    try:
        with step("workdir.fill", checkpoint_id=manifest.checkpoint_id):
            contents = _fill(fresh, workdir.address, objects, manifest)
            (fresh / MARKER).write_bytes(msgspec.json.encode(owner))
        before_publish()
        workdir.discard()
        with step("workdir.publish"):
            os.rename(fresh, workdir.path)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise _disk_trouble(error, workdir, manifest) from error
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return contents


def compare(workdir: Workdir, objects: Objects, manifest: CheckpointManifest) -> Comparison:
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
    needed = needed_files(holders, manifest.wal_position, archives.__getitem__)
    same: dict[str, BatchObject] = {}
    difference: str | None = None
    for path in sorted(needed):
        try:
            found = workdir.read(path)
        except OSError as error:
            difference = difference or f"{path} cannot be read: {error.strerror}"
            continue
        if hashlib.sha256(found).digest() == digests[path]:
            same[path] = holders[path]
        else:
            difference = difference or f"{path} is not what was captured"
    contents = Contents({path: holders[path] for path in needed}, manifest.needed_batches)
    return Comparison(difference, same, contents)


def _fill(root: Path, address: str, objects: Objects, manifest: CheckpointManifest) -> Contents:
    holders: dict[str, BatchObject] = {}
    made: set[str] = set()
    for batch, opened in _batches(objects, manifest):
        for path, data in opened.entries():
            target = os.path.join(root, _safe(path, batch))
            folder = os.path.dirname(target)
            if folder not in made:
                os.makedirs(folder, exist_ok=True)
                made.add(folder)
            with open(target, "wb") as file:  # buffered: it writes all or raises
                file.write(from_captured(path, bytes(data), address) if "/_metadata/" in path else data)
            holders[path] = batch
    needed = needed_files(holders, manifest.wal_position, lambda path: (root / path).read_bytes())
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
    return Contents({path: holders[path] for path in needed}, manifest.needed_batches)


def _batches(objects: Objects, manifest: CheckpointManifest) -> Iterator[tuple[BatchObject, Batch]]:
    """The batch objects of a checkpoint in order, verified, the next one read while this one is used."""
    wanted = manifest.needed_batches
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-rebuild") as readers:
        waiting = [readers.submit(_verified, objects, batch) for batch in wanted[:AT_ONCE]]
        for place, batch in enumerate(wanted):
            opened = waiting.pop(0).result()
            if place + AT_ONCE < len(wanted):
                waiting.append(readers.submit(_verified, objects, wanted[place + AT_ONCE]))
            yield batch, opened


def _verified(objects: Objects, batch: BatchObject) -> Batch:
    body = objects.read(batch.key, limit=batch.bytes)
    if hashlib.sha256(body).hexdigest() != batch.sha256:
        raise Corrupt(
            f"Batch object {batch.key} is not what was written.",
            code="batch.checksum",
            about=batch.key,
            next_step="recover to an older checkpoint",
        )
    return Batch(body, about=batch.key)


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
