"""`LocalFileSystem`: the path of a file sink on a local or mounted disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from holdfast.sinks.files.layout import EPOCH_FILE
from holdfast.sinks.files.renamed_files import STAGING
from holdfast.sinks.owner_file import local_owner_file, refused_directory
from holdfast.sinks.staging import StagingArea, sink_disk_errors
from holdfast.storage.files.disk import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LocalFileSystem:
    """An `EpochFileSystem` with syncs: a rename is durable when the directory above has been synced."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.staging = StagingArea(os.path.join(path, STAGING))
        self.owner = local_owner_file(path)

    def use(self, session: SparkSession) -> None:
        """Nothing to do: every session reaches a disk in the same way."""

    def errors(self, unchanged: str) -> AbstractContextManager[None]:
        return sink_disk_errors(self.path, unchanged)

    def check(self) -> None:
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise refused_directory(
                f"{self.path} is not a directory.", self.path, "sink.not-a-directory", "give the path of a directory"
            )

    def seal(self, name: str, record: bytes) -> None:
        for mark in ("_SUCCESS", "._SUCCESS.crc"):
            try:
                os.unlink(os.path.join(self.staging.path(name), mark))
            except FileNotFoundError:
                continue
        self.staging.write(name, EPOCH_FILE, record)
        self.staging.seal(name)

    def publish(self, name: str, directory: str) -> None:
        try:
            self.staging.publish(name, os.path.join(self.path, directory))
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise FileExistsError(*error.args) from error
            raise

    def secure(self, directories: Sequence[str]) -> None:
        sync(self.path)
        self.staging.sync()

    def directories(self) -> list[str]:
        return os.listdir(self.path)

    def files(self, directory: str) -> list[tuple[str, int]]:
        try:
            with os.scandir(os.path.join(self.path, directory)) as entries:
                return [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, directory: str, file: str) -> bytes | None:
        try:
            with open(os.path.join(self.path, directory, file), "rb") as opened:
                return opened.read()
        except FileNotFoundError:
            return None
