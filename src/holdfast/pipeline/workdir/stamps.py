"""What a workdir was when its query ended: a start that finds it unchanged need not read its bytes.

The file is written when a query has ended, and removed before the next one is started. So there is none after a crash
in between, and bytes are compared then, or on object storage the workdir is restored. It counts for one checkpoint, as
long as every file that the checkpoint holds has the identity that it had; on a disk until the machine is started anew,
because after a power cut a file may have its size and time and not its bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.checkpoints.manifest import BatchEntry, BatchObject, CheckpointManifest
from holdfast.errors import HoldfastError
from holdfast.pipeline.workdir.entries import Entries
from holdfast.pipeline.workdir.workdir import STAMPS, Workdir
from holdfast.storage.objects import ObjectStore
from holdfast.storage.objects.infos import infos

_FORMAT = 2


class StoredObject(NamedTuple):
    """A batch object as a listing of the store shows it."""

    size: int
    modified: float


class WorkdirStamps(msgspec.Struct, frozen=True):
    """The files of a workdir that hold what a checkpoint holds, and those that Spark wrote since."""

    format: int
    incarnation: str
    home: str
    """Where the workdir was: moved, its files name each other by addresses that are no longer right."""
    checkpoint_id: int
    batches: list[BatchObject]
    stored: list[StoredObject]
    """The batch objects as they are in the store, in the same order."""
    held: dict[str, tuple[str, list[tuple[int, int]]]]
    """The checkpoint's files, each with its identity and its entries: place of the batch object, and place in it."""
    newer: dict[str, str]
    """Files that Spark wrote since. None after a failure: then they are verified by their own checksums."""

    def is_for(self, manifest: CheckpointManifest, objects: ObjectStore) -> bool:
        """Whether a checkpoint and its batch objects are those that were stored then. May raise `Unavailable`."""
        return (
            self.checkpoint_id == manifest.checkpoint_id
            and self.batches == manifest.needed_batches
            and self.stored == _stored(objects, self.batches)
        )

    def is_unchanged(self, workdir: Workdir) -> bool:
        """Whether every file that the checkpoint holds is as it was."""
        found = workdir.directory.identities(self.held)
        return all(found.get(path) == identity for path, (identity, _) in self.held.items())

    def unchanged_newer(self, workdir: Workdir) -> set[str]:
        """The files that Spark wrote since, as far as they are as they were."""
        found = workdir.directory.identities(self.newer)
        return {path for path, identity in self.newer.items() if found.get(path) == identity}

    def entries(self) -> dict[str, Entries]:
        """The checkpoint's files, each with its entries."""
        return {
            path: tuple(BatchEntry(self.batches[place], index) for place, index in places)
            for path, (_, places) in self.held.items()
        }


def read_stamps(workdir: Workdir) -> WorkdirStamps | None:
    """The stamps, if they can be trusted; None if bytes have to be compared."""
    try:
        found = json_decoder(WorkdirStamps).decode(workdir.directory.read(STAMPS))
        is_ours = (found.format, found.incarnation, found.home) == (_FORMAT, workdir.incarnation(), workdir.address)
        is_sound = all(place < len(found.batches) for _, places in found.held.values() for place, _ in places)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if is_ours and is_sound and workdir.suspect_reason() is None else None


def changed_since(workdir: Workdir, stamps: WorkdirStamps | None) -> str | None:
    """What is not as it was when the last query ended, in words; None if everything is.

    For a workdir that is used again only after a clean end. Without checksums beside its files nothing else tells
    whether those that no checkpoint holds yet are what Spark wrote: the newest commit, with the next watermark in it.
    """
    found = stamps or read_stamps(workdir)
    if found is None:
        return "what it was when the last query ended cannot be read"
    left = found.newer | ({} if stamps else {path: identity for path, (identity, _) in found.held.items()})
    now = workdir.directory.identities(left)
    changed = (path for path in sorted(left) if now.get(path) != left[path])
    return next((f"{path} has changed since the last query ended" for path in changed), None)


def write_stamps(
    workdir: Workdir,
    objects: ObjectStore,
    manifest: CheckpointManifest,
    held: Mapping[str, Entries],
    newer: Iterable[str],
) -> None:
    """Write the stamps of a workdir whose query has ended. Not guaranteed: without them the next start reads bytes.

    `held` are the files that were captured and have not changed since.
    """
    places = {batch.key: place for place, batch in enumerate(manifest.needed_batches)}
    with contextlib.suppress(OSError, HoldfastError):
        stored = _stored(objects, manifest.needed_batches)
        known = workdir.directory.identities([*held, *newer])
        if stored is None or held.keys() - known.keys():
            return
        found = WorkdirStamps(
            _FORMAT,
            workdir.incarnation(),
            workdir.address,
            manifest.checkpoint_id,
            manifest.needed_batches,
            stored,
            {path: (known[path], [(places[e.batch.key], e.index) for e in held[path]]) for path in held},
            {path: stamp for path, stamp in known.items() if path not in held},
        )
        workdir.directory.write(STAMPS, msgspec.json.encode(found))


def remove_stamps(workdir: Workdir) -> None:
    """Spark is about to change the workdir: from now on only bytes count."""
    workdir.directory.remove(STAMPS)


def _stored(objects: ObjectStore, batches: Iterable[BatchObject]) -> list[StoredObject] | None:
    """The batch objects in the store; None if one is not there."""
    keys = [batch.key for batch in batches]
    found = infos(objects, keys)
    if found.keys() != set(keys):
        return None
    return [StoredObject(found[key].size, found[key].modified) for key in keys]
