"""A Delta table on a local or mounted path. Synced here: delta-rs syncs nothing on a local disk."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from holdfast.base.steps import step
from holdfast.errors import Corrupt, HoldfastError
from holdfast.sinks.delta.data_files import StagedFile, collect
from holdfast.sinks.delta.storage import DATA, LOG, PLACE, STAGING, InLog
from holdfast.sinks.delta.table import invalid_arguments
from holdfast.sinks.sink import Delivery, Descriptor, StagedOutputGone
from holdfast.sinks.spark_write import write_rows
from holdfast.sinks.staging import StagingArea, sink_disk_errors
from holdfast.storage.files.disk import make_directories, sync, sync_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG_FILE = re.compile(r"(\d{20})\..*")


class LocalStorage:
    """The `TableStorage` of a directory.

    Files to be appended are staged aside and moved to `holdfast/` by one rename when they are committed: removing
    staged output never touches a file that the log may name.
    """

    passing_refusals = 0
    new_table_properties: Mapping[str, str] = {}

    def __init__(self, path: str) -> None:
        self._path = path
        self._log = os.path.join(path, LOG)
        self._area = StagingArea(os.path.join(path, STAGING))
        self._durable_below = 0

    @property
    def address(self) -> str:
        return self._path

    def options(self) -> dict[str, str] | None:
        return None

    def errors(self, unchanged: str) -> AbstractContextManager[None]:
        return sink_disk_errors(self._path, unchanged)

    def trouble(self, error: Exception, unchanged: str) -> HoldfastError | None:
        return None

    # The table

    def check_connector(self) -> None:
        """Nothing to do: Spark writes to every path."""

    def exists(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return any(_LOG_FILE.fullmatch(name) for name in os.listdir(self._log))
        return False

    def make_room(self) -> None:
        if os.path.lexists(self._path) and not os.path.isdir(self._path):
            raise invalid_arguments(f"{self._path} is not a directory.", self._path, "give the path of a directory")
        others = (
            [name for name in sorted(os.listdir(self._path)) if name[0] not in "_."]
            if os.path.isdir(self._path)
            else []
        )
        if others:
            raise invalid_arguments(
                f"{self._path} holds files, for example {others[0]!r}, but no Delta table.",
                self._path,
                "give a new directory; or make a table of parquet files with deltalake.convert_to_deltalake",
            )
        make_directories(self._path)

    def check_writable(self, delivery: Delivery) -> None:
        self._area.check_writable(delivery)

    def log_entries(self, newest: int) -> Iterator[bytes]:
        for name in sorted((name for name in os.listdir(self._log) if name.endswith(".json")), reverse=True):
            with contextlib.suppress(FileNotFoundError), open(os.path.join(self._log, name), "rb") as file:
                yield file.read()

    def sync_new_table(self) -> None:
        self.sync_log()
        sync(self._path)

    def sync_log(self) -> None:
        with step("delta.sync"):
            versions: dict[str, int] = {}
            for name in os.listdir(self._log):
                found = _LOG_FILE.fullmatch(name)
                if found or name == "_last_checkpoint":
                    versions[name] = int(found[1]) if found else self._durable_below
            new = [name for name, version in versions.items() if version >= self._durable_below]
            for path in (os.path.join(self._log, name) for name in new):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile by Delta's log cleanup
                    sync(path)
            sync(self._log)
            # Sync the newest version again next time: its checkpoint may be written later.
            self._durable_below = max(versions.values(), default=0)

    def may_be_unsynced(self, delivery: Delivery) -> bool:
        return self._area.holds(delivery)

    def sync_added(self, files: Iterable[tuple[str, int]], delivery: Delivery) -> None:
        """`Corrupt` if the machine went down when the log entry was on disk and its files were not."""
        with step("delta.sync"):
            paths = []
            for path, size in files:
                whole = os.path.join(self._path, path)
                if not _is_whole(whole, size):
                    raise Corrupt(
                        f"{path} is incomplete, though the table's log has {delivery}.",
                        code="sink.delta-torn",
                        about=whole,
                        unchanged="the staged rows",
                        next_step="restore the table's directory from a copy, as it was before that version, and "
                        "start the pipeline: it commits the epoch again",
                    )
                paths.append(whole)
            sync_all(paths)
            sync_all({os.path.dirname(path) for path in paths})

    # Staged output

    def new(self, delivery: Delivery) -> AbstractContextManager[str]:
        return self._area.new(delivery)

    def write(self, frame: DataFrame, name: str, partitioned_by: Sequence[str], *, is_data: bool) -> list[StagedFile]:
        data = self.data_address(name)
        os.mkdir(data)
        write_rows(frame, data, "parquet", partition_by=partitioned_by)
        return collect(data, frame.schema.jsonValue()["fields"], partitioned_by)

    def data_address(self, name: str) -> str:
        return os.path.join(self._area.path(name), DATA)

    def seal(self, name: str, files: Mapping[str, bytes]) -> None:
        for file, body in files.items():
            self._area.write(name, file, body)
        self._area.seal(name)

    def read(self, name: str, file: str) -> bytes | None:
        try:
            return self._area.read(name, file)
        except FileNotFoundError:
            return None

    def name_in(self, descriptor: Descriptor, delivery: Delivery) -> str:
        return self._area.name_in(descriptor, delivery)

    def gone(self, name: str, delivery: Delivery) -> StagedOutputGone:
        return self._area.gone(name, delivery, "what the table's readers see")

    def put_into_place(self, name: str, files: Sequence[StagedFile]) -> list[int] | None:
        place = os.path.join(self._path, PLACE, name)
        if files:
            with step("delta.place", staged=name):
                make_directories(os.path.dirname(place))
                if not os.path.isdir(place):
                    # FileNotFoundError: moved or removed by another driver, as the sizes below tell
                    with contextlib.suppress(FileNotFoundError):
                        self._area.publish(name, place, part=DATA)
                sync(os.path.dirname(place))
        if not _are_whole(place, files):
            return None
        return [int(os.path.getmtime(os.path.join(place, file.path)) * 1000) for file in files]

    def sources(self, name: str, files: Sequence[StagedFile]) -> list[Callable[[], Any]] | None:
        data = self.data_address(name)
        if not _are_whole(data, files):
            return None
        return [_opener(os.path.join(data, file.path)) for file in files]

    def remove(self, name: str, in_log: InLog) -> None:
        self._area.remove(name)

    def remove_leftovers(self, delivery: Delivery, in_log: InLog) -> None:
        self._area.remove_leftovers(delivery)

    def sweep(self, delivery: Delivery, keep: Descriptor | None, in_log: InLog) -> None:
        self._area.sweep(delivery, keep)


def _opener(path: str) -> Callable[[], Any]:
    return lambda: path


def _are_whole(directory: str, files: Sequence[StagedFile]) -> bool:
    for file in files:
        try:
            found = os.path.getsize(os.path.join(directory, file.path))
        except FileNotFoundError:
            return False
        if found != file.size:
            return False
    return True


def _is_whole(path: str, size: int) -> bool:
    """Whether it is a parquet file of this size that ends with a footer; after a power cut it may end in zeros."""
    try:
        with open(path, "rb") as file:
            return file.seek(0, os.SEEK_END) == size and file.seek(-4, os.SEEK_END) >= 0 and file.read() == b"PAR1"
    except OSError:
        return False
