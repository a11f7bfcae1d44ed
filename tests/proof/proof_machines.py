"""A store on a disk that a test holds in its hands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.layout import DirectoryLayout, ObjectLayout
from holdfast.storage.files.disk import Disk
from holdfast.storage.objects import LocalObjects

ROOT = "/srv/pipelines/orders/store"
LAYOUTS = {"directory": DirectoryLayout, "object": ObjectLayout}


class Machine:
    """A place on one disk.

    Writers have names that are the same in each run, so that two disks with the same history are equal; `driver` tells
    the runs on one disk apart.
    """

    def __init__(self, disk: Disk, layout: str, driver: int = 0) -> None:
        self.disk = disk
        self.layout = layout
        self._names = (f"{driver:04x}{number:04x}" for number in itertools.count())

    def open(self, **settings: Any) -> CheckpointStore:
        name = next(self._names)
        objects = LocalObjects(ROOT, disk=self.disk, writer=name)
        wanted = {"max_retained": None, "new_writer_id": lambda: name, **settings}
        return CheckpointStore(objects, LAYOUTS[self.layout](), **wanted)


def contents(disk: Disk, path: str = "/") -> Iterator[tuple[str, bytes | None]]:
    """Every path with its bytes, folders without, in one order."""
    for entry in sorted(disk.scan(path), key=lambda entry: entry.name):
        below = f"{path.rstrip('/')}/{entry.name}"
        yield below, None if entry.is_directory else disk.open_file(below).read()
        if entry.is_directory:
            yield from contents(disk, below)
