"""Stores to test, on the media that need no server."""

from __future__ import annotations

import contextlib
import errno
import uuid
from pathlib import Path
from typing import Any

from holdfast import CheckpointManifest, CheckpointStore, open_store
from holdfast.checkpoints.layout import DirectoryLayout, Layout, ObjectLayout
from holdfast.errors import Unavailable
from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.objects import LocalObjects, ObjectStore, open_objects
from holdfast.testing.conformance.checkpoints.subject import Abilities, StoreUnderTest


class LocalPlace(StoreUnderTest):
    """A store on local disk."""

    layout = DirectoryLayout()
    abilities = Abilities(leftovers=True)

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.root, **options)

    def open_objects(self) -> ObjectStore:
        return open_objects(self.root)


class MemoryPlace(StoreUnderTest):
    """A store in this process's memory."""

    layout = ObjectLayout()
    abilities = Abilities(leftovers=False)

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.url, **options)

    def open_objects(self) -> ObjectStore:
        return open_objects(self.url)


class DyingDisk(PosixDisk):
    """A disk on which a write never gets as far as its name, nor its clean-up."""

    def link(self, existing: str, new: str) -> None:
        raise OSError(errno.EIO, "the process died here")

    def rename(self, old: str, new: str) -> None:
        self.link(old, new)

    def remove_file(self, path: str) -> None:
        self.link(path, path)


def interrupt(root: Path, manifest: CheckpointManifest, layout: Layout | None = None) -> None:
    """Leave behind what a save leaves when its process dies in the middle of writing the manifest."""
    with contextlib.suppress(Unavailable):
        CheckpointStore(LocalObjects(str(root), disk=DyingDisk()), layout or DirectoryLayout()).save(manifest)
