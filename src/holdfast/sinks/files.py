"""Epochs as directories of files: `<path>/epoch=000017/part-*`, each published by one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import Invalid
from holdfast.sinks.durable import disk_errors_explained, sync, write_file
from holdfast.sinks.owner_file import Owner, claim, is_owned, require_owner
from holdfast.sinks.places import local_path
from holdfast.sinks.sink import (
    Delivery,
    Descriptor,
    RowsRefused,
    StagedOutputGone,
    Standing,
    check_same_delivery,
)
from holdfast.sinks.spark_write import essence, write_rows
from holdfast.sinks.staging import StagingArea

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

    Each epoch is one directory, `<path>/epoch=000017`, or `epoch=<lineage>-000017` after a rewind. Spark, pyarrow and
    others read the whole path as one table, with the epoch as a column. What begins with `_` is ours and no reader
    shows it, also `_epoch` in each directory, which tells what the epoch was read from; a glob such as `**/*.parquet`
    would show what is staged, so read the directory, or `epoch=*/part-*`.

    Guarantees: readers see an epoch whole or not at all; an epoch appears once, whoever commits it and how often; it is
    on disk before `commit` returns. An epoch without rows is there, too.
    Does not guarantee: that two epochs appear at the same time, or few files: it writes as many as the frame has
    partitions. Old epochs may be removed by hand; the newest one tells a restart how far the sink has come.

    The directory belongs to one pipeline's sink, for ever: two of them would take each other's epochs for their own.
    One with foreign files in it is refused, as Spark passes over files beside `epoch=...` without a word. Two pipelines
    of one name, each with a store of its own, are told apart by what they read: the second to commit an epoch gets
    `Corrupt` and changes nothing.
    """

    guarantee = "exactly-once"

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        epoch_column: str = "epoch",
        options: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        """`options` go to Spark's writer: `{"compression": "zstd"}`, for csv `{"header": True}`."""
        self.path = local_path(path, kind="file")
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
            raise _invalid("The option `path` would lead elsewhere.", self.path, "leave it out")
        self._area = StagingArea(os.path.join(self.path, STAGING))
        self._epoch_directory = re.compile(rf"{re.escape(epoch_column)}=(?:(\d+)-)?(\d{{6,}})", re.ASCII)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "files",
            "path": self.path,
            "format": self.format,
            "epoch_column": self.epoch_column,
            "options": {name: "***" if _is_secret(name) else value for name, value in self.options.items()},
        }

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """Takes the directory, and has Spark write a file without rows to see that it takes this schema."""
        taken = [name for name in schema.names if name.lower() == self.epoch_column.lower()]
        if taken:
            raise RowsRefused(
                f"The column {taken[0]!r} is in the rows already, and would be read twice.",
                about=self.path,
                unchanged="the directory",
                next_step='give the epoch another name, with FileSink(..., epoch_column="holdfast_epoch")',
            )
        with disk_errors_explained(self.path, "what is in the directory"):
            claim(self.path, self._owner(delivery))
            self._try_out(schema, delivery)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        require_owner(self.path, self._owner(delivery))
        published = os.path.join(self.path, self._directory_name(delivery))
        # Found out now, nothing of it is owed: after the decision there would be no way back.
        check_same_delivery(delivery, mine=delivery.mark, found=_mark_in(published), where=published)
        with disk_errors_explained(self.path, "everything that readers see"), self._area.new(delivery) as name:
            staged = self._area.path(name)
            write_rows(frame, staged, self.format, options=self.options)
            _remove_success_mark(staged)
            # Never empty, even without rows: a rename onto a directory that is empty would succeed.
            write_file(os.path.join(staged, EPOCH_FILE), msgspec.json.encode(delivery))
            self._area.seal(name)
        return {"staged": name, "mark": delivery.mark}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        require_owner(self.path, self._owner(delivery))
        published = os.path.join(self.path, self._directory_name(delivery))
        with disk_errors_explained(self.path, f"{delivery} is still to be committed"):
            with step("sink.publish", epoch=delivery.epoch):
                self._rename(name, published, delivery, mark=descriptor.get("mark"))
            # Also if it was there before: whoever made it visible may have died before it was durable.
            with step("sink.publish-sync", epoch=delivery.epoch):
                sync(self.path)
                with contextlib.suppress(FileNotFoundError):  # nothing waits any more
                    sync(self._area.root)
            self._area.remove_leftovers(delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        with disk_errors_explained(self.path, "everything that readers see"):
            self._area.remove(name)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> Standing:
        with disk_errors_explained(self.path, "everything that readers see"):
            if not is_owned(self.path, self._owner(delivery)):
                return Standing()
            with step("sink.publish-sync"):
                sync(self.path)
            standing = self._standing(delivery.lineage)
            self._area.sweep(delivery, keep)
        return standing

    def _owner(self, delivery: Delivery) -> Owner:
        return Owner(delivery.pipeline, delivery.sink, self.format, self.epoch_column)

    def _try_out(self, schema: StructType, delivery: Delivery) -> None:
        from pyspark.sql import SparkSession

        with self._area.new(delivery) as name:
            empty = SparkSession.active().createDataFrame([], schema)
            try:
                write_rows(empty, self._area.path(name), self.format, options=self.options)
            except Exception as error:
                if not hasattr(error, "getCondition"):
                    raise
                raise Invalid(  # with no rows to blame, and no disk, the options are left
                    f"Spark does not take these options: {essence(error)}",
                    code="sink.options",
                    about=self.path,
                    unchanged="what is in the directory",
                    next_step="correct FileSink(..., options=...)",
                ) from error
            self._area.remove(name)

    def _rename(self, name: str, published: str, delivery: Delivery, *, mark: str | None) -> None:
        """Let the rename itself decide who is first: there is no moment between a look and a leap.

        `Corrupt` if the epoch is there and was read from something else.
        """
        try:
            os.rename(self._area.path(name), published)
            return
        except FileNotFoundError:
            if not _has_entries(published):
                raise StagedOutputGone(
                    f"What was staged for {delivery} is gone.",
                    about=self._area.path(name),
                    unchanged="everything that readers see",
                    next_step="stage the epoch again",
                ) from None
        except OSError as error:
            if error.errno not in ALREADY_THERE:
                raise
        check_same_delivery(delivery, mine=mark, found=_mark_in(published), where=published)

    def _directory_name(self, delivery: Delivery) -> str:
        lineage = f"{delivery.lineage}-" if delivery.lineage else ""
        return f"{self.epoch_column}={lineage}{delivery.epoch:06}"

    def _standing(self, asked: int) -> Standing:
        """From the names. Ours have something in them: an empty directory is somebody's slip."""
        named = [(found, name) for name in os.listdir(self.path) if (found := self._epoch_directory.fullmatch(name))]
        newest_first = sorted(((int(found[1] or 0), int(found[2]), name) for found, name in named), reverse=True)

        def newest(lineages: set[int]) -> tuple[int, int] | tuple[None, None]:
            for lineage, epoch, name in newest_first:
                if lineage in lineages and _has_entries(os.path.join(self.path, name)):
                    return lineage, epoch
            return None, None

        return Standing(newest({asked})[1], newest({lineage for lineage, _, _ in newest_first})[0])


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
    """The mark of the delivery that is there; None if its file is gone, or cannot be read, or does not tell."""
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
