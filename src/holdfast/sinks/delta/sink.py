"""`DeltaSink`: Spark writes the files, the `deltalake` package commits them. No jar is needed."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.base.addresses import is_cloud, is_local
from holdfast.base.codec import json_decoder
from holdfast.base.jvm import changed_settings
from holdfast.base.steps import step
from holdfast.errors import Invalid
from holdfast.sinks.delta.address import table_address
from holdfast.sinks.delta.cloud_storage import CloudStorage
from holdfast.sinks.delta.data_files import StagedFile
from holdfast.sinks.delta.local_storage import LocalStorage
from holdfast.sinks.delta.log import DeltaLog, require_deltalake
from holdfast.sinks.delta.merge import Source, merge, refuse_ambiguous_keys, stream
from holdfast.sinks.delta.new_table import (
    check_partitioning,
    checked_properties,
    other_properties,
    unfit_partitions,
)
from holdfast.sinks.delta.storage import PLACE, InLog, TableStorage
from holdfast.sinks.delta.table import (
    Json,
    added,
    check_table,
    invalid_arguments,
    is_key,
    misfits,
    new_table_schema,
    refused,
    required,
    shown,
    unmergeable,
    unsupported,
)
from holdfast.sinks.sink import EXACTLY_ONCE, Delivery, Descriptor, SinkProgress
from holdfast.sinks.spark_write import column_named, first_reason

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger("holdfast.sinks")
LIST = "files.json"
COLUMNS = "columns.json"
ADD_COLUMNS = "add-columns"
_CAN_ADD = "correct the query or the table, and start again; new columns can be added with evolve='add-columns'"
_ADDS_ONLY = (
    "evolve='add-columns' adds columns and changes none: keep the columns of the table in the query, with their names "
    "and types, as nulls if need be; or give the sink a table of its own"
)

# Write parquet as Delta's readers expect it, whatever the session's settings are.
PARQUET_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


class DeltaSink:
    """A Delta table on a path or on object storage (`s3a://bucket/lake`): rows appended, or with `key` merged.

    With `key`, a row replaces the row that has its key, or is inserted. With `delete` as well, a row in which that
    boolean column is true removes the row with its key; the column itself is not stored. Two rows with the same key in
    one epoch are refused when staged, because nothing says which one to keep, and so are null keys.

    `partition_by` and `properties` (such as `{"delta.appendOnly": "true"}`) are for the table that `prepare` creates.
    An existing one must be partitioned in the same way, and keeps its properties; a difference is logged. Columns of
    dates, booleans, integers and strings can partition. To Delta, an empty string that partitions is a null.

    With `evolve="add-columns"`, a column that the table does not have is added to it, nullable, in the same log entry
    as the first epoch that has it. A column that is missing, renamed or of another type is refused. That one epoch is
    written twice: delta-rs reads what Spark has written.

    Guarantees: readers see an epoch as a whole or not at all, and once, however often and by however many drivers it is
    committed: the epoch is in the same log entry as its rows, as an application transaction
    `holdfast/<pipeline>/<sink>/<lineage>`. It is durable before `commit` returns. An epoch without rows also has a log
    entry.
    Other pipelines and other Delta writers may write to the table. But two pipelines with the same name, each with a
    checkpoint store of its own, would use the same epoch numbers: the second one to commit an epoch gets `Corrupt` and
    changes nothing, as long as the log entry of the first is among the newest thousand.

    `prepare` creates the table if it does not exist, every column nullable. Appended files stay under
    `<path>/holdfast/`; staged ones are in `<path>/_holdfast_staging/`, which readers and vacuum skip.

    On object storage, also `abfss://` and `gs://`, Spark writes through its own connector. Files to be appended are
    written to `holdfast/` at once, so that a commit copies nothing. A full vacuum may take them before they are
    committed: an epoch that stays uncommitted for longer than its retention (a week, if not set otherwise) is noticed,
    and staged again. Keys come from `storage_options`, or else from Spark's settings, or else from the environment, and
    are asked for again with each commit. `storage_options` are not for Spark, and are never shown or recorded.
    Does not guarantee there: anything against writers that do not commit by conditional puts.

    Files that were put into `holdfast/` but not committed, because a race was lost or a driver died, are left to vacuum
    where the sink cannot tell that no log entry names them.
    """

    guarantee = EXACTLY_ONCE

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: str | Sequence[str] | None = None,
        *,
        delete: str | None = None,
        partition_by: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        evolve: Literal["add-columns"] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        require_deltalake()
        self.path = table_address(path)
        self.key = [key] if isinstance(key, str) else list(key or [])
        self.delete = delete
        if (key is not None and not self.key) or len(set(self.key)) < len(self.key) or delete in self.key:
            raise invalid_arguments(
                f"key={key!r}, delete={delete!r} cannot be a key.", self.path, "name each column once"
            )
        if delete is not None and not self.key:
            raise invalid_arguments("delete=... needs a key to delete by.", self.path, "give key=[...]")
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by or [])
        if len(set(self.partition_by)) < len(self.partition_by) or delete in self.partition_by:
            raise invalid_arguments(
                f"partition_by={partition_by!r} cannot partition a table.", self.path, "name each stored column once"
            )
        self.properties = checked_properties(properties or {}, self.path, merging=bool(self.key))
        self.evolve = evolve
        if evolve not in (None, ADD_COLUMNS):
            raise invalid_arguments(f"evolve={evolve!r} is not known.", self.path, f"give {ADD_COLUMNS!r}, or nothing")
        is_remote = is_cloud(self.path)
        if storage_options is not None and not is_remote:
            raise invalid_arguments("storage_options=... are for object storage.", self.path, "leave them out")
        self._storage: TableStorage = CloudStorage(self.path, storage_options) if is_remote else LocalStorage(self.path)
        self._log = DeltaLog(self._storage)

    @property
    def only_appends(self) -> bool:
        return not self.key

    def __repr__(self) -> str:
        return f"DeltaSink({self.path!r}{f', key={self.key!r}' if self.key else ''})"

    @property
    def written_paths(self) -> list[str]:
        """See `WritesToPaths`."""
        return [self.path] if is_local(self.path) else []

    def describe(self) -> dict[str, Any]:
        said = {"kind": "delta", "path": self.path, "key": self.key, "delete": self.delete}
        return said | ({"partition_by": self.partition_by} if self.partition_by else {})

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        fields = self._stored(schema)
        self._storage.check_connector()
        with self._storage.errors("the table, if there is one"):
            if not self._storage.exists():
                self._storage.make_room()
                properties = {**self._storage.new_table_properties, **self.properties}
                self._log.create(new_table_schema(fields), self.partition_by, properties)
            table = self._log.open()
            self._check(table, fields)
            if others := other_properties(table, self.properties):
                _warn_of_properties(self.path, "; ".join(others))
            self._storage.check_writable(delivery)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        table = self._log.open()
        self._log.has_same(table, delivery, delivery.mark)  # before the epoch is decided: afterwards it would be owed
        stored = self._stored(frame.schema)
        self._check(table, stored)
        new = added(_fields(table), stored)
        is_data = not self.key and not new  # else the commit reads the files, and writes others
        partitioned_by = table.metadata().partition_columns if is_data else []
        with self._storage.errors("what the table's readers see"), self._storage.new(delivery) as name:
            with changed_settings(frame.sparkSession, PARQUET_SETTINGS):
                files = self._storage.write(frame, name, partitioned_by, is_data=is_data)
            self._refuse_nulls(files, required(_fields(table), stored))
            if self.key and files:
                refuse_ambiguous_keys(frame.sparkSession, self._storage.data_address(name), self.key)
            columns = {COLUMNS: msgspec.json.encode(new)} if new else {}
            self._storage.seal(name, {LIST: msgspec.json.encode(files)} | columns)
        return {"staged": name, "mark": delivery.mark} | ({"adds": True} if new else {})

    def refused(self, frame: DataFrame) -> Column | None:
        """See `RefusesRows.refused`: null keys, and nulls where the table takes none."""
        stored = self._stored(frame.schema)
        needed = required(_fields(self._log.open()), stored)
        names = [name for name in frame.columns if name in needed or name in self.key]
        return first_reason(
            (column_named(name).isNull(), f"{'key ' if name in self.key else ''}column {name!r} is null")
            for name in names
        )

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name, mark = self._storage.name_in(descriptor, delivery), descriptor.get("mark")
        adds = bool(descriptor.get("adds"))

        def act(table: DeltaTable) -> None:
            if self.key:
                self._merge(table, name, delivery, mark, adds=adds)
            elif adds:
                self._append_with_columns(table, name, delivery, mark)
            else:
                self._append(table, name, delivery, mark)

        with self._storage.errors(f"{delivery} is still to be committed"):
            is_mine = self._log.settle(delivery, mark, act)
            if (self.key or adds) and self._storage.may_be_unsynced(delivery):
                self._log.sync_added(delivery)
            self._storage.sync_log()
            is_placed = is_mine and not self.key and not adds
            in_log: InLog = (lambda lineage, epoch: [name]) if is_placed else self._in_log(delivery)
            self._storage.remove_leftovers(delivery, in_log)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._storage.name_in(descriptor, delivery)
        with self._storage.errors("what the table's readers see"):
            self._storage.remove(name, self._in_log(delivery))

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        if not self._storage.exists():
            return SinkProgress()
        with self._storage.errors("what the table's readers see"):
            table = self._log.open()
            committed = self._log.committed(table, delivery)
            if committed is not None:
                last = msgspec.structs.replace(delivery, epoch=committed)
                if self._storage.may_be_unsynced(last):
                    self._log.sync_added(last)
            self._storage.sync_log()
            self._storage.sweep(delivery, keep, self._in_log(delivery))
        return SinkProgress(committed, self._log.newest_lineage(table, delivery))

    def _in_log(self, delivery: Delivery) -> InLog:
        """What the log has of this pipeline's sink."""
        if self.key:
            return lambda lineage, epoch: None  # a merge puts nothing into place
        return lambda lineage, epoch: self._log.data_of(msgspec.structs.replace(delivery, lineage=lineage, epoch=epoch))

    def _append(self, table: DeltaTable, name: str, delivery: Delivery, mark: str | None) -> None:
        from deltalake.transaction import AddAction

        files = self._staged_files(name, delivery)
        modified = self._storage.put_into_place(name, files)
        if modified is None:
            raise self._storage.gone(name, delivery)
        adds = [
            AddAction(
                path=f"{PLACE}/{name}/{file.path}",
                size=file.size,
                partition_values=file.partition,
                modification_time=at,
                data_change=True,
                stats=file.statistics,
            )
            for file, at in zip(files, modified, strict=True)
        ]
        self._log.append(table, adds, delivery, mark)

    def _append_with_columns(self, table: DeltaTable, name: str, delivery: Delivery, mark: str | None) -> None:
        """A log entry can take files or columns through `deltalake`, not both: so it writes the files once more."""
        new = self._new_columns(table, name, delivery)
        if sources := self._sources(name, delivery):
            self._log.rewrite(table, stream(sources), delivery, mark)
        else:
            self._log.add_columns(table, new, delivery, mark)

    def _merge(self, table: DeltaTable, name: str, delivery: Delivery, mark: str | None, *, adds: bool) -> None:
        new = self._new_columns(table, name, delivery) if adds else []
        if sources := self._sources(name, delivery):
            with step("delta.merge", epoch=delivery.epoch, files=len(sources)), self._log.explained():
                properties = self._log.properties(table, delivery, mark)
                merge(table, sources, self.key, self.delete, properties, adds_columns=adds)
                table.update_incremental()
        if not self._log.has(table, delivery):
            # A merge that changes nothing makes no log entry, but the epoch needs one.
            self._log.add_columns(table, new, delivery, mark)

    def _sources(self, name: str, delivery: Delivery) -> list[Source]:
        found = self._storage.sources(name, self._staged_files(name, delivery))
        if found is None:
            raise self._storage.gone(name, delivery)
        return found

    def _new_columns(self, table: DeltaTable, name: str, delivery: Delivery) -> list[Json]:
        """What was to be added when this was staged. `Invalid` if another writer has added something else meanwhile:
        delta-rs would try to convert the values."""
        found = self._storage.read(name, COLUMNS)
        if found is None:
            raise self._storage.gone(name, delivery)
        fields: list[Json] = msgspec.json.decode(found)
        if problems := list(misfits(_fields(table), fields, may_add=True)):
            raise Invalid(
                f"Another writer has changed the columns of the table since {delivery} was staged: "
                f"{'; '.join(problems)}.",
                code="sink.delta-columns",
                about=self.path,
                unchanged=f"the table; {delivery} is still to be committed",
                next_step="restore the table to the version before that change, and start again",
            )
        return fields

    def _staged_files(self, name: str, delivery: Delivery) -> list[StagedFile]:
        found = self._storage.read(name, LIST)
        if found is None:
            raise self._storage.gone(name, delivery)
        return json_decoder(list[StagedFile]).decode(found)

    def _stored(self, schema: StructType) -> list[Json]:
        """The columns that are stored: all but `delete`. `RowsRefused` if the key or the `delete` column do not fit."""
        fields: list[Json] = schema.jsonValue()["fields"]
        kinds = {field["name"]: field["type"] for field in fields}
        problems = list(unsupported(fields))
        for name in self.key:
            if name not in kinds:
                problems.append(f"there is no key column {name!r}")
            elif not is_key(kinds[name]):
                problems.append(f"the key column {name!r} is {shown(kinds[name])}, which cannot be a key")
        if self.delete is not None and kinds.get(self.delete) != "boolean":
            problems.append(f"there is no boolean column {self.delete!r} to mark the rows that delete")
        stored = [field for field in fields if field["name"] != self.delete]
        problems += unfit_partitions(self.partition_by, stored)
        if not stored:
            problems.append("there are no columns")
        if problems:
            raise refused(problems, self.path)
        return stored

    def _check(self, table: DeltaTable, stored: list[Json]) -> None:
        check_table(table, self.path, merging=bool(self.key))
        check_partitioning(table, self.path, self.partition_by)
        columns = table.metadata().partition_columns
        adds = self.evolve == ADD_COLUMNS
        fields = _fields(table)
        problems = list(misfits(fields, stored, partitioned_by=columns, missing_ok=not adds, may_add=adds))
        if adds and self.key:
            problems += unmergeable(table, added(fields, stored))
        if problems:
            raise refused(problems, self.path, _ADDS_ONLY if adds else _CAN_ADD)

    def _refuse_nulls(self, files: list[StagedFile], columns: set[str]) -> None:
        for name in sorted(columns):
            if any(
                file.nulls.get(name, 0) or (name in file.partition and file.partition[name] is None) for file in files
            ):
                raise refused([f"there are nulls in {name!r}, where the table takes none"], self.path)


def _fields(table: DeltaTable) -> list[Json]:
    found: list[Json] = msgspec.json.decode(table.schema().to_json())["fields"]
    return found


@functools.cache
def _warn_of_properties(path: str, others: str) -> None:
    log.warning(
        "%s: %s, as properties= says. They hold for a new table only; this one is left as it is. "
        "Next: change the table, or properties=",
        path,
        others,
    )
