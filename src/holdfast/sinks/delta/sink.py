"""A Delta table: Spark writes the files, the `deltalake` package commits them. No jar is needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import Invalid
from holdfast.sinks.delta import table as delta_schema
from holdfast.sinks.delta.data_files import StagedFile, collect
from holdfast.sinks.delta.log import DeltaLog, require_deltalake
from holdfast.sinks.delta.merge import merge, refuse_ambiguous_keys
from holdfast.sinks.delta.table import Json, check_table, refused
from holdfast.sinks.durable import disk_errors_explained, make_directories, sync, write_file
from holdfast.sinks.places import local_path
from holdfast.sinks.sink import Delivery, Descriptor, StagedOutputGone, Standing
from holdfast.sinks.spark_write import settings, write_rows
from holdfast.sinks.staging import StagingArea

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

STAGING = "_holdfast_staging"
PLACE = "holdfast"
LIST = "files.json"
DATA = "data"

# Parquet as Delta's readers expect it, whatever the session prefers for its own files.
PARQUET_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


class DeltaSink:
    """A Delta table on a local or mounted path: rows appended, or with `key` merged.

    With `key`, a row replaces the one that has its key, or is new. With `delete` as well, a row in which that boolean
    column is true removes the row with its key; the column itself is not stored. Two rows of one epoch with the same
    key are refused when staged, and so is a key that is null: no order says which one is meant.

    Guarantees: readers see an epoch whole or not at all; once, whoever commits it and how often: the epoch is in the
    same log entry as its rows, as an application transaction `holdfast/<pipeline>/<sink>/<lineage>`; on disk before
    `commit` returns. An epoch without rows makes a log entry, too.
    Does not guarantee: that nobody else writes the table. Several pipelines may, and anything else that speaks Delta.
    But two of one name, each with a store of its own, would count the same epochs: the second to commit one gets
    `Corrupt` and changes nothing, as long as the log entry of the first is among the newest thousand.

    The table is made by `prepare` if it is not there, every column nullable. Appended files stay under
    `<path>/holdfast/`; staged ones wait in `<path>/_holdfast_staging/`, where no reader and no vacuum looks. Files that
    were put into place and then not committed, for a race was lost or an epoch staged again, are left to vacuum.
    """

    guarantee = "exactly-once"

    def __init__(
        self, path: str | os.PathLike[str], key: str | Sequence[str] | None = None, *, delete: str | None = None
    ) -> None:
        require_deltalake()
        self.path = local_path(path, kind="Delta")
        self.key = [key] if isinstance(key, str) else list(key or [])
        self.delete = delete
        if "%" in self.path:
            raise _invalid(
                "`deltalake` reads a percent sign in a path as an escape.", self.path, "rename the directory"
            )
        if (key is not None and not self.key) or len(set(self.key)) < len(self.key) or delete in self.key:
            raise _invalid(f"key={key!r}, delete={delete!r} cannot be a key.", self.path, "name each column once")
        if delete is not None and not self.key:
            raise _invalid("delete=... needs a key to delete by.", self.path, "give key=[...]")
        self._log = DeltaLog(self.path)
        self._area = StagingArea(os.path.join(self.path, STAGING))

    def describe(self) -> dict[str, Any]:
        return {"kind": "delta", "path": self.path, "key": self.key, "delete": self.delete}

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        fields = self._stored(schema)
        with disk_errors_explained(self.path, "the table, if there is one"):
            if not self._log.exists():
                self._require_nothing_else()
                make_directories(self.path)
                self._log.create(delta_schema.for_new_table(fields))
            self._check(self._log.open(), fields)
            with self._area.new(delivery) as name:  # may this driver write there?
                self._area.remove(name)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        table = self._log.open()
        self._log.has_same(table, delivery, delivery.mark)  # or an error, before anything is decided and owed
        stored = self._stored(frame.schema)
        self._check(table, stored)
        partitioned_by = [] if self.key else table.metadata().partition_columns
        with disk_errors_explained(self.path, "what the table's readers see"), self._area.new(delivery) as name:
            data = os.path.join(self._area.path(name), DATA)
            os.mkdir(data)
            with settings(frame.sparkSession, PARQUET_SETTINGS):
                write_rows(frame, data, "parquet", partition_by=partitioned_by)
            files = collect(data, frame.schema.jsonValue()["fields"], partitioned_by)
            self._refuse_nulls(files, delta_schema.required(_fields(table), stored))
            if self.key and files:
                refuse_ambiguous_keys(frame.sparkSession, data, self.key)
            write_file(os.path.join(self._area.path(name), LIST), msgspec.json.encode(files))
            self._area.seal(name)
        return {"staged": name, "mark": delivery.mark}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name, mark = self._area.name_in(descriptor, delivery), descriptor.get("mark")
        with disk_errors_explained(self.path, f"{delivery} is still to be committed"):
            if self.key:
                self._log.settle(delivery, mark, lambda table: self._merge(table, name, delivery, mark))
                if self._area.holds(delivery):  # until now nobody has said that it is durable
                    self._log.secure_data(delivery)
            else:
                self._log.settle(delivery, mark, lambda table: self._append(table, name, delivery, mark))
            self._log.sync()
            self._area.remove_leftovers(delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        with disk_errors_explained(self.path, "what the table's readers see"):
            self._area.remove(name)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> Standing:
        if not self._log.exists():
            return Standing()
        with disk_errors_explained(self.path, "what the table's readers see"):
            table = self._log.open()
            committed = self._log.committed(table, delivery)
            if self.key and committed is not None:
                last = msgspec.structs.replace(delivery, epoch=committed)
                if self._area.holds(last):
                    self._log.secure_data(last)
            self._log.sync()
            self._area.sweep(delivery, keep)
        return Standing(committed, self._log.newest_lineage(table, delivery))

    def _append(self, table: DeltaTable, name: str, delivery: Delivery, mark: str | None) -> None:
        from deltalake.transaction import AddAction

        files = self._staged_files(name, delivery)
        place = self._put_into_place(name) if files else ""
        self._require_all(files, place, delivery)
        adds = [
            AddAction(
                path=f"{PLACE}/{name}/{file.path}",
                size=file.size,
                partition_values=file.partition,
                modification_time=int(os.path.getmtime(os.path.join(place, file.path)) * 1000),
                data_change=True,
                stats=file.statistics,
            )
            for file in files
        ]
        self._log.append(table, adds, delivery, mark)

    def _merge(self, table: DeltaTable, name: str, delivery: Delivery, mark: str | None) -> None:
        files = self._staged_files(name, delivery)
        data = os.path.join(self._area.path(name), DATA)
        self._require_all(files, data, delivery)
        if files:
            with step("delta.merge", epoch=delivery.epoch, files=len(files)), self._log.explained():
                paths = [os.path.join(data, file.path) for file in files]
                merge(table, paths, self.key, self.delete, self._log.properties(table, delivery, mark))
                table.update_incremental()
        if not self._log.has(table, delivery):
            # A merge that changes nothing makes no log entry; the epoch needs one all the same.
            self._log.append(table, [], delivery, mark)

    def _staged_files(self, name: str, delivery: Delivery) -> list[StagedFile]:
        try:
            with open(os.path.join(self._area.path(name), LIST), "rb") as file:
                return json_decoder(list[StagedFile]).decode(file.read())
        except FileNotFoundError:
            raise self._gone(name, delivery) from None

    def _put_into_place(self, name: str) -> str:
        """Move the data to where the table's files lie. Not visible yet. Fine if it has been moved already."""
        place = os.path.join(self.path, PLACE, name)
        with step("delta.place", staged=name):
            make_directories(os.path.dirname(place))
            if not os.path.isdir(place):
                try:
                    os.rename(os.path.join(self._area.path(name), DATA), place)
                except FileNotFoundError:
                    return place  # moved or removed by another driver: whether it is there is looked at next
            sync(os.path.dirname(place))
        return place

    def _require_all(self, files: list[StagedFile], directory: str, delivery: Delivery) -> None:
        for file in files:
            try:
                found = os.path.getsize(os.path.join(directory, file.path))
            except FileNotFoundError:
                found = -1
            if found != file.size:
                raise self._gone(os.path.basename(directory), delivery)

    def _gone(self, name: str, delivery: Delivery) -> StagedOutputGone:
        return StagedOutputGone(
            f"What was staged for {delivery} is gone, or not all there.",
            about=self._area.path(name),
            unchanged="what the table's readers see",
            next_step="stage the epoch again",
        )

    def _stored(self, schema: StructType) -> list[Json]:
        """The rows' columns but for the flag that deletes. `RowsRefused` if key and flag are not what they must be."""
        fields: list[Json] = schema.jsonValue()["fields"]
        kinds = {field["name"]: field["type"] for field in fields}
        problems = list(delta_schema.unsupported(fields))
        for name in self.key:
            if name not in kinds:
                problems.append(f"there is no key column {name!r}")
            elif not delta_schema.is_key(kinds[name]):
                problems.append(f"the key column {name!r} is {delta_schema.shown(kinds[name])}, which cannot be a key")
        if self.delete is not None and kinds.get(self.delete) != "boolean":
            problems.append(f"there is no boolean column {self.delete!r} to tell which rows delete")
        stored = [field for field in fields if field["name"] != self.delete]
        if not stored:
            problems.append("there are no columns")
        if problems:
            raise refused(problems, self.path)
        return stored

    def _check(self, table: DeltaTable, stored: list[Json]) -> None:
        check_table(table, self.path, merging=bool(self.key))
        columns = table.metadata().partition_columns
        problems = list(delta_schema.misfits(_fields(table), stored, partitioned_by=columns))
        if problems:
            raise refused(problems, self.path)

    def _refuse_nulls(self, files: list[StagedFile], columns: set[str]) -> None:
        for name in sorted(columns):
            if any(
                file.nulls.get(name, 0) or (name in file.partition and file.partition[name] is None) for file in files
            ):
                raise refused([f"there are nulls in {name!r}, where the table takes none"], self.path)

    def _require_nothing_else(self) -> None:
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise _invalid(f"{self.path} is not a directory.", self.path, "give the path of a directory")
        others = (
            [name for name in sorted(os.listdir(self.path)) if name[0] not in "_."] if os.path.isdir(self.path) else []
        )
        if others:
            raise _invalid(
                f"{self.path} holds files, {others[0]!r} for one, and no Delta table.",
                self.path,
                "give a new directory; or make a table of parquet files with deltalake.convert_to_deltalake",
            )


def _fields(table: DeltaTable) -> list[Json]:
    found: list[Json] = msgspec.json.decode(table.schema().to_json())["fields"]
    return found


def _invalid(message: str, about: str, next_step: str) -> Invalid:
    return Invalid(message, code="sink.delta-arguments", about=about, unchanged="everything", next_step=next_step)
