"""`TableStorage`: where a Delta table lies. Its log as files, the output staged for it, and how both become durable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.sinks.delta.data_files import StagedFile
from holdfast.sinks.sink import Delivery, Descriptor, StagedOutputGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG = "_delta_log"
STAGING = "_holdfast_staging"
PLACE = "holdfast"
DATA = "data"

InLog = Callable[[int, int], Collection[str] | None]
"""For a lineage and an epoch: the names of staged output whose files the table's log has as data; None if that cannot
be told any more."""


class TableStorage(Protocol):
    """One table's directory or prefix. Staged output lies below `_holdfast_staging/`, which readers and vacuum skip.

    Every write is durable when it returns, except where a method says otherwise.
    """

    passing_refusals: int
    """How often in a row a commit may be refused, though no other writer was first, before that is an error. S3 does so
    while another writer's request for the same log entry is under way."""

    new_table_properties: Mapping[str, str]
    """What a new table gets, unless the user says otherwise."""

    @property
    def address(self) -> str:
        """As `deltalake` and messages name it; no credentials in it."""

    def options(self) -> dict[str, str] | None:
        """The storage options of `deltalake` that hold now. Secret."""

    def errors(self, unchanged: str) -> AbstractContextManager[None]:
        """In this block failures of the storage become errors of ours."""

    def trouble(self, error: Exception, unchanged: str) -> HoldfastError | None:
        """What a failed request of `deltalake` was about; None if that is not about the storage."""

    # The table

    def check_connector(self) -> None:
        """`Invalid` if Spark has no connector for this kind of storage."""

    def exists(self) -> bool:
        """Whether there is a log."""

    def make_room(self) -> None:
        """Make the place for a new table. `Invalid` if something else is there."""

    def check_writable(self, delivery: Delivery) -> None:
        """Raise unless this driver can stage here, and the storage lets one of two drivers win."""

    def log_entries(self, newest: int) -> Iterator[bytes]:
        """The log entries from version `newest` down, as far as they are there."""

    def sync_new_table(self) -> None:
        """Make the log and the table's directory durable after `deltalake` created them."""

    def sync_log(self) -> None:
        """Make log entries durable that `deltalake` and other writers made since the last call."""

    def may_be_unsynced(self, delivery: Delivery) -> bool:
        """Whether files that `deltalake` wrote for a committed delivery may not be durable yet."""

    def sync_added(self, files: Iterable[tuple[str, int]], delivery: Delivery) -> None:
        """Make data files durable that `deltalake` wrote for a delivery: path and size of each.

        `Corrupt` if a file is incomplete.
        """

    # Staged output

    def new(self, delivery: Delivery) -> AbstractContextManager[str]:
        """The name of new staged output for a delivery, removed again if the block raises."""

    def write(self, frame: DataFrame, name: str, partitioned_by: Sequence[str], *, is_data: bool) -> list[StagedFile]:
        """Write the frame as parquet, and return the files that have rows. Not durable before `seal`.

        `is_data`: these very files become the table's data, instead of being read by the commit.
        """

    def data_address(self, name: str) -> str:
        """Where `write` put files that are not data, for Spark to read them."""

    def seal(self, name: str, files: Mapping[str, bytes]) -> None:
        """Add these files to the staged output, and make all of it durable."""

    def read(self, name: str, file: str) -> bytes | None:
        """A file that `seal` added; None if it is gone."""

    def name_in(self, descriptor: Descriptor, delivery: Delivery) -> str:
        """The staged output that a descriptor of this delivery names. `Invalid` if it names anything else."""

    def gone(self, name: str, delivery: Delivery) -> StagedOutputGone:
        """The error to raise if the staged output of a delivery is missing or incomplete."""

    def put_into_place(self, name: str, files: Sequence[StagedFile]) -> list[int] | None:
        """Have these files at `holdfast/<name>/`, where the log can name them, and return when each was modified (ms).

        Fine if they are there already. None if one is missing or has another size.
        """

    def sources(self, name: str, files: Sequence[StagedFile]) -> list[Callable[[], Any]] | None:
        """For each of these files a function that opens it for pyarrow. None if one is missing or has another size."""

    def remove(self, name: str, in_log: InLog) -> None:
        """Remove staged output. Fine if it is gone. Files that the log has as data stay."""

    def remove_leftovers(self, delivery: Delivery, in_log: InLog) -> None:
        """Remove everything that this driver and earlier ones staged for a delivery that has been committed."""

    def sweep(self, delivery: Delivery, keep: Descriptor | None, in_log: InLog) -> None:
        """Remove this owner's staged output of earlier generations: see `Sink.recover`."""
