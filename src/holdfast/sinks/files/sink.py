"""`FileSink`: an epoch is a directory of files, `<path>/epoch=000017/part-*`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.base.addresses import is_cloud, is_local
from holdfast.base.durations import read_duration
from holdfast.base.redact import is_secret
from holdfast.errors import Invalid
from holdfast.sinks.files.address import sink_path
from holdfast.sinks.files.epoch_files import epoch_files_at
from holdfast.sinks.files.layout import FileLayout
from holdfast.sinks.sink import EXACTLY_ONCE, Delivery, Descriptor, RowsRefused, SinkProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMATS = ("csv", "json", "orc", "parquet")


class FileSink:
    """Files in a directory, on HDFS or on object storage, in any of Spark's formats parquet, json, csv and orc.

    `path` is a local or mounted directory, or `hdfs://host:port/path` (`hdfs://nameservice/path`), or
    `s3a://bucket/path` (`s3://` means the same), `gs://bucket/path` or
    `abfss://container@account.dfs.core.windows.net/path`, which Spark needs a connector for.

    Each epoch is one directory, `<path>/epoch=000017`, or `epoch=<lineage>-000017` after a reset. Spark, pyarrow and
    others read the whole path as one table with the epoch as a column. Names that begin with `_` are Holdfast's, and
    readers skip them, also the file `_epoch` in each directory, which holds the source positions of the epoch.

    Guarantees: an epoch is committed once, however often and by however many drivers, and durably before `commit`
    returns; on HDFS that means: every DataNode has acknowledged it, and synced it if `dfs.datanode.synconclose` is set.
    Readers see no row of an epoch that was not decided. In a directory, also on HDFS, they see an epoch as a whole or
    not at all. On object storage that holds for Spark's readers of the path, and for those who read what `files()`
    lists; any other reader that lists the path may see some files of a decided epoch before the others, until its
    commit has finished, also if the epoch has to be staged once more. An epoch without rows counts, too.
    Does not guarantee: a small number of files. There is one per partition of the frame. A glob such as `**/*.parquet`
    in a directory includes staged files: read the directory, or `epoch=*/part-*`. On object storage staged files
    lie outside of the path, in `_<name>.holdfast-staging` beside it.
    Old epochs may be removed by hand from a directory, but not the newest: a restart reads the sink's progress from it.
    On object storage only those may that have left the log (`keep`): Spark's readers would look for the others.

    The path belongs to one pipeline's sink for ever, because its epochs do not name the sink they are from. A
    path with other files is refused, because Spark silently skips files beside `epoch=...`. Two pipelines with the
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
        storage_options: Mapping[str, str] | None = None,
        keep: str | timedelta | None = None,
    ) -> None:
        """`options` go to Spark's writer: `{"compression": "zstd"}`, for csv `{"header": True}`.

        `storage_options` are for Holdfast's own access to object storage or HDFS, named as in `open_store`; by default
        it uses what Spark's settings say about the address (`spark.hadoop.fs.s3a...`), or else the environment.

        `keep`, on object storage: epochs whose files are older than that ('30d', or a timedelta), counted from the
        newest file, leave the log of committed files with one of the next ten epochs. Spark's readers and `files()` no
        longer see them, and their files may be removed. Without it the log grows for ever, and each tenth epoch writes
        all of it.
        """
        given = os.fspath(path)
        self.path = sink_path(given)
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
        if storage_options is not None and is_local(given):
            raise _invalid("A local path takes no storage_options.", self.path, "leave them out")
        if keep is not None and not is_cloud(self.path):
            raise _invalid(
                "Only on object storage does a file sink have a log that could forget epochs.",
                self.path,
                "leave keep= out; old epochs may be removed by hand, all but the newest",
            )
        layout = FileLayout(self.format, self.epoch_column, self.options, _milliseconds(keep, self.path))
        self._epoch_files = epoch_files_at(given, layout, storage_options)

    def __repr__(self) -> str:
        return f"FileSink({self.path!r}, format={self.format!r})"

    @property
    def written_paths(self) -> list[str]:
        """See `WritesToPaths`."""
        return [self.path] if is_local(self.path) else []

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
        self._epoch_files.prepare(schema, delivery)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        return self._epoch_files.stage(frame, delivery)

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self._epoch_files.commit(descriptor, delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self._epoch_files.rollback(descriptor, delivery)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        return self._epoch_files.recover(delivery, keep)

    def files(self) -> list[str]:
        """The files of the committed epochs, oldest epoch first, for readers that take a list.

        Absolute paths, or addresses with the scheme that the sink was given. Needs no Spark.
        """
        return [file.address for file in self._epoch_files.files()]


def _invalid(message: str, about: str, next_step: str) -> Invalid:
    return Invalid(message, code="sink.files", about=about, unchanged="everything", next_step=next_step)


def _milliseconds(keep: str | timedelta | None, about: str) -> int | None:
    if keep is None:
        return None
    try:
        seconds = keep.total_seconds() if isinstance(keep, timedelta) else read_duration(keep).seconds
    except ValueError as error:
        raise _invalid(f"keep: {error}, nor a timedelta.", about, "give a length of time, or leave it out") from None
    if seconds <= 0:
        raise _invalid(f"keep={keep!r} is no length of time.", about, "give one, or leave it out")
    return int(seconds * 1000)


def _as_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_secret(name: str) -> bool:
    return is_secret(name) or "key" in name.lower()  # also those of Parquet's encryption
