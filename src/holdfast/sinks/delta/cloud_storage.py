"""A Delta table on object storage: Spark's connector writes, our own client and `deltalake` do the rest."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast.base.addresses import scheme_of, spark_address
from holdfast.base.jvm import active_session, open_connector
from holdfast.base.steps import step
from holdfast.checkpoints.conditional_writes import check_once
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, one_line
from holdfast.sinks import staged_name
from holdfast.sinks.delta.cloud_errors import service_error
from holdfast.sinks.delta.cloud_options import delta_options
from holdfast.sinks.delta.data_files import FOOTER_THREADS, StagedFile, read_footer
from holdfast.sinks.delta.object_file import ObjectFile
from holdfast.sinks.delta.partition_paths import partition_values, with_path_columns
from holdfast.sinks.delta.storage import DATA, LOG, PLACE, STAGING, InLog
from holdfast.sinks.delta.table import invalid_arguments
from holdfast.sinks.sink import Delivery, Descriptor, StagedOutputGone
from holdfast.sinks.spark_write import write_rows
from holdfast.sinks.staged_name import StagedName, gone, name_in, new_name, parse
from holdfast.storage.objects.retry import check_release
from holdfast.storage.objects.spark_access import OpenedForSpark
from holdfast.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("holdfast.sinks")
BEGUN = "begun"
MAX_LIST = 64 << 20


class CloudStorage:
    """The `TableStorage` of a prefix in a bucket.

    Files to be appended are written where they stay, below `holdfast/<name>/`: a commit copies nothing. Beside them,
    `_holdfast_staging/<name>/` has an object from before the first file is written until everything is committed or
    removed, so that a driver finds what an earlier one left without listing the table. Files that a commit reads
    (merges) lie there as well.

    Guarantees: files in place are removed only if the log has the delivery with other files, or does not have it.
    Does not guarantee: that staged output can be removed while another driver commits it for the first time. A pipeline
    never does that: it removes what was not decided, and commits what was.

    Keys of a role are asked for again whenever the table is opened: they are valid for an hour.
    """

    passing_refusals = 3
    # Each log entry since the newest checkpoint is a request or two whenever the table is opened. Delta on Spark makes
    # a checkpoint after ten, delta-rs after a hundred.
    new_table_properties: Mapping[str, str] = {"delta.checkpointInterval": "10"}

    def __init__(self, address: str, options: Mapping[str, str] | None = None) -> None:
        """`options` are named as in obstore or `deltalake`. None: those of Spark, or else of the environment."""
        self._address = address
        self._spark = OpenedForSpark(address, options)
        self._was_answered = False
        """Whether a request had an answer. From then on missing credentials are a fault that passes."""

    @property
    def address(self) -> str:
        return self._address

    def options(self) -> dict[str, str] | None:
        return delta_options(self._address, self._spark.access().options_now() or {}, os.environ)

    @contextlib.contextmanager
    def errors(self, unchanged: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # what `deltalake` and pyarrow raise for every failed request
            raise self._explained(error, unchanged) from error
        self._was_answered = True

    def trouble(self, error: Exception, unchanged: str) -> HoldfastError | None:
        return self._explained(error, unchanged) if isinstance(error, OSError) else None

    def _explained(self, error: OSError, unchanged: str) -> HoldfastError:
        return service_error(error, self._address, unchanged, was_answered=self._was_answered)

    # The table

    def check_connector(self) -> None:
        session = active_session()
        if session is None:
            return
        address = spark_address(self._address)
        try:
            open_connector(session, address)
        except Exception as error:
            raise Invalid(
                f"Spark cannot write to {address}: {one_line(error)}",
                code="sink.connector",
                about=address,
                unchanged="everything",
                next_step="give Spark the connector, for s3a: spark.jars.packages=org.apache.hadoop:hadoop-aws in the "
                "version of its Hadoop, and its settings",
            ) from error

    def exists(self) -> bool:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        check_release("deltalake")
        # Not `is_deltatable`, which stops every thread of the process until the service answers.
        try:
            with self.errors("everything"):
                DeltaTable(self._address, storage_options=self.options())
        except TableNotFoundError:
            return False
        except DeltaError:
            return True  # one that cannot be read
        return True

    def make_room(self) -> None:
        names = {info.key.partition("/")[0] for info in self._objects().list("")}
        others = sorted(name for name in names if name[:1] not in ("_", "."))
        if others:
            raise invalid_arguments(
                f"{self._address} holds objects, for example {others[0]!r}, but no Delta table.",
                self._address,
                "give a new prefix, or the one at which the table is; or make a table of parquet files with "
                "deltalake.convert_to_deltalake",
            )

    def check_writable(self, delivery: Delivery) -> None:
        objects = self._objects()
        check_once(objects, f"{STAGING}/", objects.list(f"{STAGING}/"), now=time.time())
        with self.new(delivery) as name:
            self._delete(name, in_place=False)
        if scheme_of(self._address) in ("s3", "s3a"):
            _warn_of_other_writers(self._address)

    def log_entries(self, newest: int) -> Iterator[bytes]:
        for version in range(newest, -1, -1):
            with contextlib.suppress(Corrupt):  # too large to be one of ours
                try:
                    yield self._objects().read(f"{LOG}/{version:020}.json", limit=MAX_LIST)
                except NotFound:
                    return  # cleaned up, like all before it

    def sync_new_table(self) -> None:
        """Nothing to do: every request was acknowledged."""

    def sync_log(self) -> None:
        """Nothing to do: every request was acknowledged."""

    def may_be_unsynced(self, delivery: Delivery) -> bool:
        return False

    def sync_added(self, files: Iterable[tuple[str, int]], delivery: Delivery) -> None:
        """Nothing to do: every request was acknowledged."""

    # Staged output

    @contextlib.contextmanager
    def new(self, delivery: Delivery) -> Iterator[str]:
        name = new_name(delivery)
        self._objects().create(f"{STAGING}/{name}/{BEGUN}", [b"{}"])
        with staged_name.removed_if_it_fails(name, functools.partial(self._delete, in_place=True)):
            yield name

    def write(self, frame: DataFrame, name: str, partitioned_by: Sequence[str], *, is_data: bool) -> list[StagedFile]:
        folder = f"{PLACE}/{name}/" if is_data else f"{STAGING}/{name}/{DATA}/"
        written, paths = with_path_columns(frame, partitioned_by)
        write_rows(written, f"{self._address}/{folder}", "parquet", partition_by=paths)
        fields = frame.schema.jsonValue()["fields"]
        files, empty = self._collect(folder, {field["name"]: field["type"] for field in fields}, partitioned_by)
        if empty:
            self._objects().delete([folder + path for path in empty])
        return files

    def data_address(self, name: str) -> str:
        return f"{self._address}/{STAGING}/{name}/{DATA}"

    def seal(self, name: str, files: Mapping[str, bytes]) -> None:
        with step("sink.sync", staged=name):
            for file, body in files.items():
                self._objects().create(f"{STAGING}/{name}/{file}", [body])

    def read(self, name: str, file: str) -> bytes | None:
        try:
            return self._objects().read(f"{STAGING}/{name}/{file}", limit=MAX_LIST)
        except NotFound as error:
            if error.code == "bucket.not-found":
                raise
            return None

    def name_in(self, descriptor: Descriptor, delivery: Delivery) -> str:
        return name_in(descriptor, delivery, area=f"{self._address}/{STAGING}")

    def gone(self, name: str, delivery: Delivery) -> StagedOutputGone:
        where = f"{self._address}/{STAGING}/{name}"
        return gone(delivery, where=where, unchanged="what the table's readers see")

    def put_into_place(self, name: str, files: Sequence[StagedFile]) -> list[int] | None:
        """They are in place since they were written."""
        folder = f"{PLACE}/{name}/"
        if not files:
            return []
        found = {info.key.removeprefix(folder): info for info in self._objects().list(folder)}
        if any(file.path not in found or found[file.path].size != file.size for file in files):
            return None
        return [int(found[file.path].modified * 1000) for file in files]

    def sources(self, name: str, files: Sequence[StagedFile]) -> list[Callable[[], Any]] | None:
        folder = f"{STAGING}/{name}/{DATA}/"
        if not files:
            return []
        sizes = {info.key.removeprefix(folder): info.size for info in self._objects().list(folder)}
        if any(sizes.get(file.path) != file.size for file in files):
            return None
        return [functools.partial(ObjectFile, self._objects(), folder + file.path, file.size) for file in files]

    def remove(self, name: str, in_log: InLog) -> None:
        with step("sink.discard", staged=name):
            if found := self._staged().get(name):
                self._remove(name, found, in_log)

    def remove_leftovers(self, delivery: Delivery, in_log: InLog) -> None:
        with step("sink.discard", epoch=delivery.epoch):
            staged = self._staged()
            for name in staged_name.left_over(staged, delivery):
                self._remove(name, staged[name], in_log)

    def sweep(self, delivery: Delivery, keep: Descriptor | None, in_log: InLog) -> None:
        with step("sink.discard", generation=delivery.generation):
            staged = self._staged()
            for name in staged_name.over(staged, delivery, keep):
                self._remove(name, staged[name], in_log)

    def _staged(self) -> dict[str, StagedName]:
        names = {info.key.removeprefix(f"{STAGING}/").partition("/")[0] for info in self._objects().list(f"{STAGING}/")}
        return {name: found for name in sorted(names) if (found := parse(name)) is not None}

    def _remove(self, name: str, found: StagedName, in_log: InLog) -> None:
        data: Collection[str] | None = in_log(found.lineage, found.epoch)
        self._delete(name, in_place=data is not None and name not in data)  # unknown: left to vacuum

    def _delete(self, name: str, *, in_place: bool) -> None:
        """Data first: as long as the name is in the staging area, a later driver finishes what a crash interrupted."""
        objects = self._objects()
        if in_place:
            objects.delete([info.key for info in objects.list(f"{PLACE}/{name}/")])
        objects.delete([info.key for info in objects.list(f"{STAGING}/{name}/")])

    def _collect(
        self, folder: str, kinds: dict[str, Any], partitioned_by: Sequence[str]
    ) -> tuple[list[StagedFile], list[str]]:
        """What Spark wrote: files with rows, and paths of files without. Their footers are read, and no row."""
        found = [
            (path, info.size, values)
            for info in self._objects().list(folder)
            if (path := info.key.removeprefix(folder)).endswith(".parquet")
            and not any(part[0] in "_." for part in path.split("/"))
            and (values := partition_values(path, partitioned_by)) is not None
        ]
        if not found:
            return [], []
        objects = self._objects()

        def footer(one: tuple[str, int, dict[str, str | None]]) -> StagedFile:
            path, size, values = one
            return read_footer(ObjectFile(objects, folder + path, size), path, size, values, kinds)

        with ThreadPoolExecutor(min(FOOTER_THREADS, len(found))) as threads:
            files = list(threads.map(footer, found))
        return [file for file in files if file.rows], [file.path for file in files if not file.rows]

    def _objects(self) -> ObjectStore:
        return self._spark.open()


@functools.cache
def _warn_of_other_writers(address: str) -> None:
    log.warning(
        "%s: two writers exclude each other by conditional puts. Holdfast and deltalake since 1.0 use them; older "
        "releases of delta-rs and Spark's own Delta writer with its single-cluster log store do not, and may overwrite "
        "an epoch. Next: let only writers commit to this table that use conditional puts",
        address,
    )
