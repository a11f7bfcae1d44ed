"""`RenamedFiles`: epochs where directories can be renamed, each published by one rename.

    <path>/_holdfast.json          whose path it is
    <path>/_staging/...            what is staged
    <path>/epoch=000017/_epoch     the delivery
    <path>/epoch=000017/part-*     its files

A rename is atomic, fails if the epoch is there, and fails if what was staged is gone. So any driver may repeat it, and
every reader that lists the path sees an epoch as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.sinks.files.layout import EPOCH_FILE, HIDDEN, CommittedFile, FileLayout
from holdfast.sinks.files.trial_write import try_out
from holdfast.sinks.owner_file import DirectoryOwner, OwnerFile
from holdfast.sinks.sink import Delivery, Descriptor, SinkProgress, check_same_delivery
from holdfast.sinks.spark_write import write_rows
from holdfast.sinks.staged_name import gone, name_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STAGING = "_staging"


class StagedDirectories(Protocol):
    """Where staged output lies, one directory per delivery: `StagingArea`, or the same on another file system."""

    root: str

    def path(self, name: str) -> str: ...
    def new(self, delivery: Delivery) -> AbstractContextManager[str]: ...
    def remove(self, name: str) -> None: ...
    def remove_leftovers(self, delivery: Delivery) -> None: ...
    def sweep(self, delivery: Delivery, keep: Descriptor | None) -> None: ...


class EpochFileSystem(Protocol):
    """What publishing by a rename asks of a file system, at the path of one sink.

    Methods take a directory's name, not its path.
    """

    path: str

    def use(self, session: SparkSession) -> None:
        """Use this session's settings to reach the path."""

    def errors(self, unchanged: str) -> AbstractContextManager[None]:
        """In this block the file system's errors become those of `holdfast.errors`, saying what is unchanged.

        `FileNotFoundError` and `FileExistsError` of `publish` may still be caught inside of it.
        """

    @property
    def owner(self) -> OwnerFile: ...
    @property
    def staging(self) -> StagedDirectories: ...

    def check(self) -> None:
        """`Invalid` if the path cannot be a directory."""

    def seal(self, name: str, record: bytes) -> None:
        """Add the file `_epoch` to a staged directory, remove Spark's marker files, and make it durable."""

    def publish(self, name: str, directory: str) -> None:
        """Rename a staged directory to that of its epoch.

        Guarantees: of any number of callers one succeeds. `FileExistsError` if the epoch is there and not empty, also
        after a lost reply; `FileNotFoundError` if nothing is staged under this name.
        Does not guarantee: that the new name survives a power cut before `secure`.
        """

    def secure(self, directories: Sequence[str]) -> None:
        """Make published directories durable, whoever renamed them."""

    def directories(self) -> list[str]:
        """The names of the directories at the path."""

    def files(self, directory: str) -> list[tuple[str, int]]:
        """The names and sizes of the files in a directory; none if it is gone."""

    def read(self, directory: str, file: str) -> bytes | None:
        """A small file; None if it is gone."""


class RenamedFiles:
    """The path of a file sink, on a file system with renames of directories."""

    def __init__(self, at: EpochFileSystem, layout: FileLayout) -> None:
        self.path = at.path
        self._at = at
        self._layout = layout

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        with self._at.errors("what is in the directory"):
            self._at.check()
            self._at.owner.claim(self._layout.owner(delivery))
            with self._at.staging.new(delivery) as name:
                try_out(schema, self._at.staging.path(name), self._layout, about=self.path)
                self._at.staging.remove(name)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        self._at.use(frame.sparkSession)
        self._at.owner.require(self._layout.owner(delivery))
        # Compared before the epoch is decided: afterwards it would be owed, and could never be committed.
        self._compare(delivery, mine=delivery.mark)
        with self._at.errors("everything that readers see"), self._at.staging.new(delivery) as name:
            write_rows(frame, self._at.staging.path(name), self._layout.format, options=self._layout.options)
            # With it no epoch's directory is ever empty: on some file systems a rename onto an empty one succeeds.
            self._at.seal(name, msgspec.json.encode(delivery))
        return {"staged": name, "mark": delivery.mark}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = name_in(descriptor, delivery, area=self._at.staging.root)
        self._at.owner.require(self._layout.owner(delivery))
        with self._at.errors(f"{delivery} is still to be committed"):
            with step("sink.publish", epoch=delivery.epoch):
                self._rename(name, delivery, mark=descriptor.get("mark"))
            # Also if another driver has published it: that driver may have died before it was durable.
            with step("sink.publish-sync", epoch=delivery.epoch):
                self._at.secure([self._layout.directory(delivery)])
            self._at.staging.remove_leftovers(delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = name_in(descriptor, delivery, area=self._at.staging.root)
        with self._at.errors("everything that readers see"):
            self._at.staging.remove(name)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        with self._at.errors("everything that readers see"):
            if not self._at.owner.is_owned(self._layout.owner(delivery)):
                return SinkProgress()
            progress, newest = self._progress(delivery.lineage)
            with step("sink.publish-sync"):
                self._at.secure(newest)
            self._at.staging.sweep(delivery, keep)
        return progress

    def owner(self) -> DirectoryOwner | None:
        with self._at.errors("everything"):
            return self._at.owner.read()

    def files(self) -> list[CommittedFile]:
        with self._at.errors("everything"):
            if self._at.owner.read() is None:
                raise self._at.owner.unready()
            return [
                CommittedFile(f"{self.path}/{name}/{file}", size, lineage, epoch)
                for lineage, epoch, name in self._epochs()
                for file, size in sorted(self._at.files(name))
                if not file.startswith(HIDDEN)
            ]

    def _rename(self, name: str, delivery: Delivery, *, mark: str | None) -> None:
        """Publish by a rename, which fails if the epoch exists. A check beforehand would race with a second driver.

        `Corrupt` if the epoch exists and came from other data.
        """
        published = self._layout.directory(delivery)
        try:
            self._at.publish(name, published)
            return
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not self._at.files(published):
                raise gone(delivery, where=self._at.staging.path(name)) from None
        self._compare(delivery, mine=mark)

    def _compare(self, delivery: Delivery, *, mine: str | None) -> None:
        published = self._layout.directory(delivery)
        found = _mark_in(self._at.read(published, EPOCH_FILE))
        check_same_delivery(delivery, mine=mine, found=found, where=f"{self.path}/{published}")

    def _epochs(self) -> list[tuple[int, int, str]]:
        """Lineage, epoch and name of each directory that is named like an epoch's, oldest first."""
        named = [(found, name) for name in self._at.directories() if (found := self._layout.epoch_in(name))]
        return sorted((lineage, epoch, name) for (lineage, epoch), name in named)

    def _progress(self, asked: int) -> tuple[SinkProgress, list[str]]:
        """The progress according to the directories' names, and the directories that tell it.

        Empty directories do not count: an epoch's never is.
        """
        newest_first = self._epochs()[::-1]

        def newest(lineages: set[int]) -> tuple[int, int, str] | None:
            found = (entry for entry in newest_first if entry[0] in lineages and self._at.files(entry[2]))
            return next(found, None)

        of_lineage, of_all = newest({asked}), newest({lineage for lineage, _, _ in newest_first})
        progress = SinkProgress(of_lineage and of_lineage[1], of_all and of_all[0])
        return progress, sorted({found[2] for found in (of_lineage, of_all) if found})


def _mark_in(record: bytes | None) -> str | None:
    """The mark of a published delivery; None if its record is missing, unreadable or has none."""
    if record is None:
        return None
    try:
        return json_decoder(Delivery).decode(record).mark
    except msgspec.DecodeError:
        return None
