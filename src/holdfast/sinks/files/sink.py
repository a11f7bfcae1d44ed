"""`FileSink`: an epoch is a directory of files, `<path>/epoch=000017/part-*`, published by one rename."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.addresses import local_path
from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import Invalid, one_line
from holdfast.sinks.owner_file import DirectoryOwner, claim, is_owned, require_owner
from holdfast.sinks.sink import (
    EXACTLY_ONCE,
    Delivery,
    Descriptor,
    RowsRefused,
    SinkProgress,
    check_same_delivery,
)
from holdfast.sinks.spark_write import write_rows
from holdfast.sinks.staging import StagingArea, sink_disk_errors
from holdfast.storage.files.disk import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMATS = ("csv", "json", "orc", "parquet")
EPOCH_FILE = "_epoch"
STAGING = "_staging"
SECRET_WORDS = ("key", "secret", "password", "token", "credential")
ALREADY_THERE = (errno.ENOTEMPTY, errno.EEXIST)


class FileSink:
    """Files in a local or mounted directory, in any of Spark's formats parquet, json, csv and orc.

    Each epoch is one directory, `<path>/epoch=000017`, or `epoch=<lineage>-000017` after a reset. Spark, pyarrow and
    others read the whole path as one table with the epoch as a column. Names that begin with `_` are Holdfast's, and
    readers skip them, also the file `_epoch` in each directory, which holds the source positions of the epoch. A glob
    such as `**/*.parquet` would include staged files: read the directory, or `epoch=*/part-*`.

    Guarantees: readers see an epoch as a whole or not at all, and once, however often and by however many drivers it is
    committed. It is on disk before `commit` returns. An epoch without rows also gets a directory.
    Does not guarantee: a small number of files. There is one per partition of the frame.
    Old epochs may be removed by hand, but not the newest: a restart reads the sink's progress from it.

    The directory belongs to one pipeline's sink for ever, because its epochs do not name the sink they are from. A
    directory with other files is refused, because Spark silently skips files beside `epoch=...`. Two pipelines with the
    same name, each with a checkpoint store of its own, are distinguished by their source positions: the second one to
    commit an epoch gets `Corrupt` and changes nothing.
    """

    guarantee = EXACTLY_ONCE
    only_appends = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        epoch_column: str = "epoch",
        options: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        """`options` go to Spark's writer: `{"compression": "zstd"}`, for csv `{"header": True}`."""
        self.path = local_path(path, code="sink.address")
        self.format = format.lower()
        if self.format not in FORMATS:
            raise _invalid(
                f"{format!r} is not a format of a file sink.", self.path, f"choose among {', '.join(FORMATS)}"
            )
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", epoch_column, re.ASCII):
            raise _invalid(
                f"epoch_column={epoch_column!r} cannot name a directory.", self.path, "use letters, digits and _"
            )
        self.epoch_column = epoch_column
        self.options = {name: _as_text(value) for name, value in sorted((options or {}).items())}
        if "path" in {name.lower() for name in self.options}:
            raise _invalid("The option `path` would write to another directory.", self.path, "leave it out")
        self._area = StagingArea(os.path.join(self.path, STAGING))
        self._epoch_directory = re.compile(rf"{re.escape(epoch_column)}=(?:(\d+)-)?(\d{{6,}})", re.ASCII)

    def __repr__(self) -> str:
        return f"FileSink({self.path!r}, format={self.format!r})"

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "files",
            "path": self.path,
            "format": self.format,
            "epoch_column": self.epoch_column,
            "options": {name: "***" if _is_secret(name) else value for name, value in self.options.items()},
        }

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """Claim the directory, and have Spark write a file without rows, to check schema and options."""
        taken = [name for name in schema.names if name.lower() == self.epoch_column.lower()]
        if taken:
            raise RowsRefused(
                f"The rows already have a column {taken[0]!r}, which would be read twice.",
                about=self.path,
                unchanged="the directory",
                next_step='give the epoch another name, with FileSink(..., epoch_column="holdfast_epoch")',
            )
        with sink_disk_errors(self.path, "what is in the directory"):
            claim(self.path, self._owner(delivery))
            self._try_out(schema, delivery)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        require_owner(self.path, self._owner(delivery))
        published = os.path.join(self.path, self._directory_name(delivery))
        # Compared before the epoch is decided: afterwards it would be owed, and could never be committed.
        check_same_delivery(delivery, mine=delivery.mark, found=_mark_in(published), where=published)
        with sink_disk_errors(self.path, "everything that readers see"), self._area.new(delivery) as name:
            staged = self._area.path(name)
            write_rows(frame, staged, self.format, options=self.options)
            _remove_success_mark(staged)
            # Also ensures that no epoch's directory is empty: a rename onto an empty directory would succeed.
            self._area.write(name, EPOCH_FILE, msgspec.json.encode(delivery))
            self._area.seal(name)
        return {"staged": name, "mark": delivery.mark}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        require_owner(self.path, self._owner(delivery))
        published = os.path.join(self.path, self._directory_name(delivery))
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
            if not is_owned(self.path, self._owner(delivery)):
                return SinkProgress()
            with step("sink.publish-sync"):
                sync(self.path)
            progress = self._progress(delivery.lineage)
            self._area.sweep(delivery, keep)
        return progress

    def _owner(self, delivery: Delivery) -> DirectoryOwner:
        return DirectoryOwner(delivery.pipeline, delivery.sink, self.format, self.epoch_column)

    def _try_out(self, schema: StructType, delivery: Delivery) -> None:
        from pyspark.sql import SparkSession

        with self._area.new(delivery) as name:
            empty = SparkSession.active().createDataFrame([], schema)
            try:
                write_rows(empty, self._area.path(name), self.format, options=self.options)
            except Exception as error:
                if not hasattr(error, "getCondition"):
                    raise
                raise Invalid(  # without rows, and with a working disk, only the options can be wrong
                    f"Spark does not take these options: {one_line(error)}",
                    code="sink.options",
                    about=self.path,
                    unchanged="what is in the directory",
                    next_step="correct FileSink(..., options=...)",
                ) from error
            self._area.remove(name)

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

    def _directory_name(self, delivery: Delivery) -> str:
        lineage = f"{delivery.lineage}-" if delivery.lineage else ""
        return f"{self.epoch_column}={lineage}{delivery.epoch:06}"

    def _progress(self, asked: int) -> SinkProgress:
        """The progress according to the directories' names. Empty directories do not count: an epoch's never is."""
        named = [(found, name) for name in os.listdir(self.path) if (found := self._epoch_directory.fullmatch(name))]
        newest_first = sorted(((int(found[1] or 0), int(found[2]), name) for found, name in named), reverse=True)

        def newest(lineages: set[int]) -> tuple[int, int] | tuple[None, None]:
            for lineage, epoch, name in newest_first:
                if lineage in lineages and _has_entries(os.path.join(self.path, name)):
                    return lineage, epoch
            return None, None

        return SinkProgress(newest({asked})[1], newest({lineage for lineage, _, _ in newest_first})[0])


def _invalid(message: str, about: str, next_step: str) -> Invalid:
    return Invalid(message, code="sink.files", about=about, unchanged="everything", next_step=next_step)


def _as_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_WORDS)


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
