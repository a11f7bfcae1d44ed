"""`LocalFiles`: epochs in a local or mounted directory, each published by one rename."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.sinks.files.layout import EPOCH_FILE, HIDDEN, CommittedFile, FileLayout
from holdfast.sinks.files.try_out import try_out
from holdfast.sinks.owner_file import DirectoryOwner, local_owner_file, refused_directory
from holdfast.sinks.sink import Delivery, Descriptor, SinkProgress, check_same_delivery
from holdfast.sinks.spark_write import write_rows
from holdfast.sinks.staging import StagingArea, sink_disk_errors
from holdfast.storage.files.disk import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

STAGING = "_staging"
ALREADY_THERE = (errno.ENOTEMPTY, errno.EEXIST)


class LocalFiles:
    """The directory of a file sink, on a disk with renames and syncs."""

    def __init__(self, path: str, layout: FileLayout) -> None:
        self.path = path
        self._layout = layout
        self._area = StagingArea(os.path.join(path, STAGING))
        self._owner = local_owner_file(path)

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        with sink_disk_errors(self.path, "what is in the directory"):
            if os.path.lexists(self.path) and not os.path.isdir(self.path):
                raise refused_directory(
                    f"{self.path} is not a directory.",
                    self.path,
                    "sink.not-a-directory",
                    "give the path of a directory",
                )
            self._owner.claim(self._layout.owner(delivery))
            with self._area.new(delivery) as name:
                try_out(schema, self._area.path(name), self._layout, about=self.path)
                self._area.remove(name)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        self._owner.require(self._layout.owner(delivery))
        published = self._published(delivery)
        # Compared before the epoch is decided: afterwards it would be owed, and could never be committed.
        check_same_delivery(delivery, mine=delivery.mark, found=_mark_in(published), where=published)
        with sink_disk_errors(self.path, "everything that readers see"), self._area.new(delivery) as name:
            staged = self._area.path(name)
            write_rows(frame, staged, self._layout.format, options=self._layout.options)
            _remove_success_mark(staged)
            # Also ensures that no epoch's directory is empty: a rename onto an empty directory would succeed.
            self._area.write(name, EPOCH_FILE, msgspec.json.encode(delivery))
            self._area.seal(name)
        return {"staged": name, "mark": delivery.mark}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        self._owner.require(self._layout.owner(delivery))
        published = self._published(delivery)
        with sink_disk_errors(self.path, f"{delivery} is still to be committed"):
            with step("sink.publish", epoch=delivery.epoch):
                self._rename(name, published, delivery, mark=descriptor.get("mark"))
            # Also if another driver has published it: that driver may have died before the sync.
            with step("sink.publish-sync", epoch=delivery.epoch):
                sync(self.path)
                self._area.sync()
            self._area.remove_leftovers(delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        with sink_disk_errors(self.path, "everything that readers see"):
            self._area.remove(name)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        with sink_disk_errors(self.path, "everything that readers see"):
            if not self._owner.is_owned(self._layout.owner(delivery)):
                return SinkProgress()
            with step("sink.publish-sync"):
                sync(self.path)
            progress = self._progress(delivery.lineage)
            self._area.sweep(delivery, keep)
        return progress

    def owner(self) -> DirectoryOwner | None:
        with sink_disk_errors(self.path, "everything"):
            return self._owner.read()

    def files(self) -> list[CommittedFile]:
        with sink_disk_errors(self.path, "everything"):
            if self._owner.read() is None:
                raise self._owner.unready()
            found = []
            for lineage, epoch, name in self._epochs():
                with os.scandir(os.path.join(self.path, name)) as entries:
                    data = sorted((entry.name, entry.stat().st_size) for entry in entries if _is_data(entry))
                at = os.path.join(self.path, name)
                found += [CommittedFile(os.path.join(at, file), size, lineage, epoch) for file, size in data]
            return found

    def _published(self, delivery: Delivery) -> str:
        return os.path.join(self.path, self._layout.directory(delivery))

    def _rename(self, name: str, published: str, delivery: Delivery, *, mark: str | None) -> None:
        """Publish by a rename, which fails if the epoch exists. A check beforehand would race with a second driver.

        `Corrupt` if the epoch exists and came from other data.
        """
        try:
            self._area.publish(name, published)
            return
        except FileNotFoundError:
            if not _has_entries(published):
                raise self._area.gone(name, delivery) from None
        except OSError as error:
            if error.errno not in ALREADY_THERE:
                raise
        check_same_delivery(delivery, mine=mark, found=_mark_in(published), where=published)

    def _epochs(self) -> list[tuple[int, int, str]]:
        """Lineage, epoch and name of each directory that is named like an epoch's, oldest first."""
        named = [(found, name) for name in os.listdir(self.path) if (found := self._layout.epoch_in(name))]
        return sorted((lineage, epoch, name) for (lineage, epoch), name in named)

    def _progress(self, asked: int) -> SinkProgress:
        """The progress according to the directories' names. Empty directories do not count: an epoch's never is."""
        newest_first = self._epochs()[::-1]

        def newest(lineages: set[int]) -> tuple[int, int] | tuple[None, None]:
            for lineage, epoch, name in newest_first:
                if lineage in lineages and _has_entries(os.path.join(self.path, name)):
                    return lineage, epoch
            return None, None

        return SinkProgress(newest({asked})[1], newest({lineage for lineage, _, _ in newest_first})[0])


def _remove_success_mark(staged: str) -> None:
    for name in ("_SUCCESS", "._SUCCESS.crc"):
        try:
            os.unlink(os.path.join(staged, name))
        except FileNotFoundError:
            continue


def _mark_in(published: str) -> str | None:
    """The mark of the published delivery; None if its file is missing, unreadable or has none."""
    try:
        with open(os.path.join(published, EPOCH_FILE), "rb") as file:
            return json_decoder(Delivery).decode(file.read()).mark
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _has_entries(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_data(entry: os.DirEntry[str]) -> bool:
    return entry.is_file() and not entry.name.startswith(HIDDEN)
