"""`HdfsFileSystem`: the path of a file sink on HDFS.

HDFS renames a directory atomically, refuses an existing target, and has the rename in its synced log when it answers.
It removes a directory, with all that is in it, atomically too. A rename without an answer is settled by looking; it may
also land later, and does no harm then: only decided epochs are renamed, each to the one name it has.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from holdfast.base.steps import step
from holdfast.errors import HoldfastError, NotFound
from holdfast.sinks.files.layout import EPOCH_FILE
from holdfast.sinks.files.renamed_files import STAGING
from holdfast.sinks.owner_file import OWNER_FILE, OwnerFile, refused_directory
from holdfast.sinks.sink import Delivery, Descriptor
from holdfast.sinks.staged_name import left_over, new_name, over, removed_if_it_fails
from holdfast.storage.objects.hdfs_errors import translated
from holdfast.storage.objects.spark_access import OpenedForSpark

if TYPE_CHECKING:
    from hdfs_native import FileStatus
    from pyspark.sql import SparkSession

    from holdfast.storage.objects.hdfs import HdfsObjects

RECORD_LIMIT = 64 << 20


class HdfsFileSystem:
    """An `EpochFileSystem`. Reached through hdfs-native, by given options, or Spark's settings, or HADOOP_CONF_DIR."""

    def __init__(self, address: str, options: Mapping[str, str] | None) -> None:
        self.path = address
        self._folder = _Folder(address, options)
        self.staging = HdfsStaging(self._folder)

    @property
    def owner(self) -> OwnerFile:
        return OwnerFile(
            self._folder.objects(),
            OWNER_FILE,
            directory=self.path,
            names=lambda: [posixpath.basename(found.path) for found in self._folder.entries("") or []],
            unready="it was removed, or never prepared",
        )

    def use(self, session: SparkSession) -> None:
        self._folder.objects(session)

    def errors(self, unchanged: str) -> AbstractContextManager[None]:
        """Nothing to do: every call explains its own errors, and leaves those of Spark as they are."""
        return contextlib.nullcontext()

    def check(self) -> None:
        found = self._folder.status("")
        if found is not None and not found.isdir:
            raise refused_directory(
                f"{self.path} is not a directory.", self.path, "sink.not-a-directory", "give the path of a directory"
            )

    def seal(self, name: str, record: bytes) -> None:
        with step("sink.sync", staged=name):
            self._folder.write(f"{STAGING}/{name}/{EPOCH_FILE}", record)

    def publish(self, name: str, directory: str) -> None:
        found = self._folder.status(directory)
        if found is not None and not found.isdir:
            raise refused_directory(
                f"{directory} is not a directory.", self.path, "sink.not-a-directory", "move that file away"
            )
        if found is not None and not self._folder.entries(directory):
            self._folder.remove(directory)  # made by hand: no epoch's directory is empty
        self._folder.rename(f"{STAGING}/{name}", directory)

    def secure(self, directories: Sequence[str]) -> None:
        self._folder.objects().secure([f"{name}/{EPOCH_FILE}" for name in directories])

    def directories(self) -> list[str]:
        return [posixpath.basename(found.path) for found in self._folder.entries("") or [] if found.isdir]

    def files(self, directory: str) -> list[tuple[str, int]]:
        found = self._folder.entries(directory) or []
        return [(posixpath.basename(file.path), file.length) for file in found if not file.isdir]

    def read(self, directory: str, file: str) -> bytes | None:
        try:
            return self._folder.objects().read(f"{directory}/{file}", limit=RECORD_LIMIT)
        except NotFound:
            return None


class HdfsStaging:
    """The staged directories of a sink on HDFS; as `StagingArea`. Spark makes them when it writes."""

    def __init__(self, folder: _Folder) -> None:
        self.root = f"{folder.address}/{STAGING}"
        self._folder = folder

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def new(self, delivery: Delivery) -> AbstractContextManager[str]:
        """The name of a new directory for a delivery, removed again if the block raises."""
        return removed_if_it_fails(new_name(delivery), self.remove)

    def remove(self, name: str) -> None:
        """Remove a staged directory. Fine if it is gone."""
        with step("sink.discard", staged=name):
            self._remove([name])

    def remove_leftovers(self, delivery: Delivery) -> None:
        """Remove everything that this driver and earlier ones staged for a delivery that has been published."""
        with step("sink.discard", epoch=delivery.epoch):
            self._remove(left_over(self._names(), delivery))

    def sweep(self, delivery: Delivery, keep: Descriptor | None) -> None:
        """Remove this owner's staged output of earlier generations; `keep` stays, and what may still be decided."""
        with step("sink.discard", generation=delivery.generation):
            self._remove(over(self._names(), delivery, keep))

    def _names(self) -> list[str]:
        return [posixpath.basename(found.path) for found in self._folder.entries(STAGING) or []]

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._folder.remove(f"{STAGING}/{name}", recursive=True)
        with contextlib.suppress(HoldfastError):  # not empty, most of the time
            self._folder.remove(STAGING)


class _Folder:
    """The folders below one address, by names relative to it. All errors are those of `holdfast.errors`."""

    def __init__(self, address: str, options: Mapping[str, str] | None) -> None:
        self.address = address
        self._opened = OpenedForSpark(address, options)

    def objects(self, session: SparkSession | None = None) -> HdfsObjects:
        from holdfast.storage.objects.hdfs import HdfsObjects

        found = self._opened.open(session)
        assert isinstance(found, HdfsObjects)
        return found

    def status(self, name: str) -> FileStatus | None:
        """None if there is nothing under this name."""
        objects = self.objects()
        try:
            with self._explained(name):
                return objects.client.status(f"{objects.root}/{name}".rstrip("/"))
        except NotFound:
            return None

    def entries(self, name: str) -> list[FileStatus] | None:
        """The entries of a folder, without those of its subfolders; None if it is gone, or a file."""
        objects = self.objects()
        path = f"{objects.root}/{name}".rstrip("/")
        try:
            with self._explained(name):
                found = objects.client.list(path)
        except NotFound:
            return None
        return found if [status.path for status in found] != [path] else None

    def write(self, name: str, body: bytes) -> None:
        """A new file, synced. `Unavailable` if its folder is gone.

        The folder is not made again: what was staged in it is lost.
        """
        objects = self.objects()
        path = f"{objects.root}/{name}"
        with self._explained(name, writing=True), step("hdfs.write"):
            objects.client.write(objects.client.create(path, parents=False), path, [body])

    def rename(self, old: str, new: str) -> None:
        """As `EpochFileSystem.publish`."""
        objects = self.objects()
        try:
            objects.client.rename(f"{objects.root}/{old}", f"{objects.root}/{new}")
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            if not self.entries(new):
                raise translated(error, f"{self.address}/{new}", writing=True) from error
            raise FileExistsError(f"{self.address}/{new}") from error

    def remove(self, name: str, *, recursive: bool = False) -> None:
        """Fine if it is gone. A folder that is not empty is an error unless `recursive`."""
        objects = self.objects()
        with self._explained(name, writing=True):
            objects.client.remove(f"{objects.root}/{name}", recursive=recursive)

    @contextlib.contextmanager
    def _explained(self, name: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise translated(error, f"{self.address}/{name}".rstrip("/"), writing=writing) from error
