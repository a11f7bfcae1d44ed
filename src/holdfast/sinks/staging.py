"""`StagingArea`: a directory for staged output, with one directory per delivery, which is later published or removed.

Only this class creates, syncs, publishes and removes these directories: it is the place to support file systems other
than local or mounted ones. Their names tell a later driver which ones it may remove (see `staged_name`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from contextlib import AbstractContextManager

from holdfast.base.steps import step
from holdfast.sinks.sink import Delivery, Descriptor, StagedOutputGone
from holdfast.sinks.staged_name import gone, left_over, name_in, new_name, over, parse, removed_if_it_fails
from holdfast.storage.files import disk

REMOVING = "_removing-"


def sink_disk_errors(about: str, unchanged: str) -> AbstractContextManager[None]:
    """In this block an `OSError` becomes `Unavailable` with the code `sink.disk`."""
    return disk.disk_errors("", code="sink.disk", about=about, unchanged=unchanged)


class StagingArea:
    """The staged directories below `root`, which is created when needed and removed when empty.

    Removing is safe during a commit: a directory is renamed before its files are removed, so that a driver that
    publishes it finds all of it or nothing. The next `sweep` finishes a removal that a crash interrupted.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def new(self, delivery: Delivery) -> AbstractContextManager[str]:
        """The name of a new, empty directory for a delivery, removed again if the block raises.

        Files in it are not durable before `seal`.
        """
        return removed_if_it_fails(self._make(delivery), self.remove)

    def seal(self, name: str) -> None:
        """Make everything in a staged directory durable, with its own name and the name of the area."""
        with step("sink.sync", staged=name):
            disk.sync_tree(self.path(name))
            disk.sync(self.root)
            disk.sync(os.path.dirname(self.root))

    def check_writable(self, delivery: Delivery) -> None:
        """Create and remove a directory: `OSError` if this driver may not."""
        with self.new(delivery) as name:
            self.remove(name)

    def write(self, name: str, file: str, body: bytes) -> None:
        """Add a file to a staged directory."""
        disk.write_file(os.path.join(self.path(name), file), body)

    def read(self, name: str, file: str) -> bytes:
        """A file of a staged directory; `FileNotFoundError` if either is gone."""
        with open(os.path.join(self.path(name), file), "rb") as opened:
            return opened.read()

    def files(self, name: str) -> list[str]:
        """The names in a staged directory, sorted; none if it is gone."""
        try:
            return sorted(os.listdir(self.path(name)))
        except FileNotFoundError:
            return []

    def publish(self, name: str, path: str, *, part: str = "") -> None:
        """Move a staged directory, or a part of it, to `path` in one rename: of several drivers, one succeeds.

        Not durable before the parent of `path` is synced. `FileNotFoundError` if it is not staged; another `OSError` if
        a directory that is not empty has this path.
        """
        os.rename(os.path.join(self.root, name, part) if part else self.path(name), path)

    def sync(self) -> None:
        """Make the names in the area durable. Fine if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            disk.sync(self.root)

    def name_in(self, descriptor: Descriptor, delivery: Delivery) -> str:
        """The staged directory that a descriptor of this delivery names. `Invalid` if it names anything else."""
        return name_in(descriptor, delivery, area=self.root)

    def gone(self, name: str, delivery: Delivery, unchanged: str = "everything that readers see") -> StagedOutputGone:
        """The error to raise if the staged output of a delivery is missing or incomplete."""
        return gone(delivery, where=self.path(name), unchanged=unchanged)

    def remove(self, name: str) -> None:
        """Remove a staged directory. Fine if it is gone."""
        with step("sink.discard", staged=name):
            self._remove(name)
            self._remove_if_empty()

    def remove_leftovers(self, delivery: Delivery) -> None:
        """Remove everything that this driver and earlier ones staged for a delivery that has been published."""
        with step("sink.discard", epoch=delivery.epoch):
            for name in left_over(self._names(), delivery):
                self._remove(name)
            self._remove_if_empty()

    def sweep(self, delivery: Delivery, keep: Descriptor | None) -> None:
        """Remove this owner's staged output of earlier generations, and finish interrupted removals.

        `keep` stays, and output of the epoch after `delivery`, which may still be decided.
        """
        with step("sink.discard", generation=delivery.generation):
            for name in over(self._names(), delivery, keep):
                self._remove(name)
            for name in self._names():
                if name.startswith(REMOVING):
                    shutil.rmtree(self.path(name), ignore_errors=True)
            self._remove_if_empty()

    def holds(self, delivery: Delivery) -> bool:
        """Whether any driver's output is still staged for this delivery."""
        return any((found := parse(name)) is not None and found.is_of(delivery) for name in self._names())

    def _make(self, delivery: Delivery) -> str:
        name = new_name(delivery)
        while True:
            try:
                os.makedirs(self.path(name))
            except FileNotFoundError:
                continue  # another driver removed the empty root in between
            return name

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []

    def _remove(self, name: str) -> None:
        aside = self.path(f"{REMOVING}{uuid.uuid4().hex}")
        try:
            os.rename(self.path(name), aside)
        except FileNotFoundError:
            return
        # It can no longer be published: a later sweep removes what cannot be removed now.
        shutil.rmtree(aside, ignore_errors=True)

    def _remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):  # not empty, or gone
            os.rmdir(self.root)
