"""The log of a Delta table, through the `deltalake` package."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable, one_line
from holdfast.sinks.delta.storage import LOG, PLACE, TableStorage
from holdfast.sinks.delta.table import Json
from holdfast.sinks.sink import Delivery, check_same_delivery

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction
    from pyarrow import RecordBatchReader

ATTEMPTS = 50
FIRST_PAUSE = 0.05
MARK = "holdfast.mark"
ENTRIES_SEARCHED = 1000


def require_deltalake() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise Invalid(
            "A Delta sink needs the package `deltalake`, which is not installed.",
            code="sink.package",
            about="deltalake",
            unchanged="everything",
            next_step="pip install 'holdfast[delta]'",
        ) from error


def application(delivery: Delivery) -> str:
    """The application id in Delta's log: one per pipeline's sink. `<id>/<lineage>` counts the epochs of a lineage."""
    names = (urllib.parse.quote(name, safe="") for name in (delivery.pipeline, delivery.sink))
    return "/".join(("holdfast", *names))


class DeltaLog:
    """The log of the table in this storage.

    Every commit is made on top of the version that was read, or fails: delta-rs creates the next log entry only if it
    does not exist, and its own retries are off. So reading the application's transaction and committing are atomic: of
    two drivers with the same epoch, one commits it.
    """

    def __init__(self, storage: TableStorage) -> None:
        self._storage = storage

    @property
    def address(self) -> str:
        return self._storage.address

    def create(
        self, schema: Json, partition_by: Sequence[str] = (), properties: Mapping[str, str] | None = None
    ) -> None:
        """Create the table without rows, durably. Fine if it exists, also if another process creates it meanwhile."""
        from deltalake import DeltaTable, Schema

        with step("delta.create"), self.explained():
            DeltaTable.create(
                self.address,
                Schema.from_json(json.dumps(schema)),
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(properties or {}),
                raise_if_key_not_exists=False,
                storage_options=self._storage.options(),
            )
        self._storage.sync_new_table()

    def open(self) -> DeltaTable:
        """The newest version. Opened each time: an old handle would not notice that the table was replaced."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            with self._storage.errors("everything"):
                return DeltaTable(self.address, storage_options=self._storage.options())
        except TableNotFoundError as error:
            raise Unavailable(
                f"{self.address} holds no Delta table: it is not mounted, or elsewhere, or was removed, or never "
                "prepared.",
                code="sink.not-prepared",
                about=self.address,
                unchanged="everything",
                next_step="mount it, or correct the address, or prepare the sink if the table is new",
            ) from error
        except DeltaError as error:
            raise Corrupt(
                f"The log of the table cannot be read: {one_line(error)}",
                code="sink.delta-log",
                about=f"{self.address}/{LOG}",
                unchanged="everything",
                next_step="if it is about a checkpoint, remove _last_checkpoint there, which is only a hint; "
                "otherwise restore the log",
            ) from error

    def committed(self, table: DeltaTable, delivery: Delivery) -> int | None:
        """The newest epoch of the delivery's lineage that this version of the table has."""
        return table.transaction_version(f"{application(delivery)}/{delivery.lineage}")

    def has(self, table: DeltaTable, delivery: Delivery) -> bool:
        return (self.committed(table, delivery) or 0) >= delivery.epoch

    def newest_lineage(self, table: DeltaTable, delivery: Delivery) -> int | None:
        return table.transaction_version(application(delivery))

    def settle(self, delivery: Delivery, mark: str | None, act: Callable[[DeltaTable], None]) -> bool:
        """Have `act` commit the delivery on the newest version unless the log has it; retry after a conflict.

        True if this call committed it and was told so; False if it was found in the log.

        On return the log has the delivery, from this driver or another, and readers see it; it is durable only after
        `sync_added` and the storage's `sync_log`. `Corrupt` if the log has it with another mark.
        """
        from deltalake.exceptions import CommitFailedError

        refused = 0
        for _ in range(ATTEMPTS):
            table = self.open()
            looked_at = table.version()
            if self.has_same(table, delivery, mark):
                return False
            try:
                act(table)
            except CommitFailedError as error:
                if self.open().version() != looked_at:
                    continue
                refused += 1  # no other writer was first: not a race, or one that is not over yet
                if refused > self._storage.passing_refusals:
                    raise self._not_taken(error) from error
                time.sleep(FIRST_PAUSE * 2**refused)
                continue
            except (HoldfastError, OSError):
                # A faster driver commits and removes the staged files, also while this one reads them.
                # A commit whose reply was lost fails, too.
                if self.has_same(self.open(), delivery, mark):
                    return False
                raise
            self._require(delivery)
            return True
        raise Conflict(
            f"{ATTEMPTS} times in a row another writer committed to {self.address} first.",
            code="sink.delta-busy",
            about=self.address,
            unchanged=f"{delivery} is still to be committed",
            next_step="try again when there are fewer writers to the table",
        )

    def has_same(self, table: DeltaTable, delivery: Delivery, mark: str | None) -> bool:
        """Whether the log has the delivery. `Corrupt` if its mark differs; not compared if its log entry is too old."""
        if not self.has(table, delivery):
            return False
        actions = self._entry_of(table, delivery, ENTRIES_SEARCHED) if mark is not None else []
        found = next((action["commitInfo"].get(MARK) for action in actions if "commitInfo" in action), None)
        check_same_delivery(delivery, mine=mark, found=found, where=self.address)
        return True

    def _require(self, delivery: Delivery) -> None:
        """`OutcomeUnknown` if the log does not show a commit that succeeded: it must not be made a second time."""
        if not self.has(self.open(), delivery):
            raise OutcomeUnknown(
                f"{delivery} was committed, but the table's log does not show it.",
                code="sink.delta-forgetful",
                about=self.address,
                unchanged="what was staged",
                next_step="look at the table's history before anything is committed again",
            )

    def properties(self, table: DeltaTable, delivery: Delivery, mark: str | None) -> CommitProperties:
        """Commit properties that record the delivery, and make the commit fail if the table has a newer version."""
        from deltalake import CommitProperties, Transaction

        newest = max(self.newest_lineage(table, delivery) or 0, delivery.lineage)
        about = {"pipeline": delivery.pipeline, "sink": delivery.sink, "epoch": str(delivery.epoch)}
        metadata = {f"holdfast.{name}": value for name, value in about.items()}
        return CommitProperties(
            custom_metadata=metadata if mark is None else metadata | {MARK: mark},
            max_commit_retries=0,
            app_transactions=[
                Transaction(f"{application(delivery)}/{delivery.lineage}", delivery.epoch),
                Transaction(application(delivery), newest),
            ],
        )

    def append(self, table: DeltaTable, adds: Sequence[AddAction], delivery: Delivery, mark: str | None) -> None:
        """Commit files that are in the table's directory. Without files, record only the epoch."""
        with step("delta.commit", epoch=delivery.epoch, files=len(adds)), self.explained():
            table.create_write_transaction(
                list(adds),
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=self.properties(table, delivery, mark),
            )

    def add_columns(self, table: DeltaTable, fields: list[Json], delivery: Delivery, mark: str | None) -> None:
        """Commit the epoch without files, with those of the columns that the table does not have yet."""
        from deltalake import Field

        have = {field.name for field in table.schema().fields}
        new = [Field.from_json(json.dumps(field)) for field in fields if field["name"] not in have]
        if not new:
            return self.append(table, [], delivery, mark)
        with step("delta.commit", epoch=delivery.epoch, files=0), self.explained():
            table.alter.add_columns(new, commit_properties=self.properties(table, delivery, mark))

    def rewrite(self, table: DeltaTable, rows: RecordBatchReader, delivery: Delivery, mark: str | None) -> None:
        """Commit rows with the columns that they have besides. delta-rs writes the files anew, as they are read."""
        from deltalake import write_deltalake

        with step("delta.rewrite", epoch=delivery.epoch), self.explained():
            properties = self.properties(table, delivery, mark)
            write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=properties)

    def sync_added(self, delivery: Delivery) -> None:
        """Make the files durable that delta-rs wrote for this delivery.

        `Corrupt` if a file is incomplete. Does nothing if the delivery's entry is no longer in the log.
        """
        self._storage.sync_added(self._added_by(self.open(), delivery), delivery)

    def data_of(self, delivery: Delivery) -> Collection[str] | None:
        """The names of staged output whose files the delivery's log entry has as data; None if the entry is too old."""
        table = self.open()
        if not self.has(table, delivery):
            return ()
        actions = self._entry_of(table, delivery, ENTRIES_SEARCHED)
        paths = [action["add"]["path"].split("/") for action in actions if "add" in action]
        return {parts[1] for parts in paths if parts[0] == PLACE} if actions else None

    def _added_by(self, table: DeltaTable, delivery: Delivery) -> list[tuple[str, int]]:
        files = [
            action[kind] for action in self._entry_of(table, delivery) for kind in ("add", "cdc") if kind in action
        ]
        return [(urllib.parse.unquote(file["path"]), file["size"]) for file in files]

    def _entry_of(self, table: DeltaTable, delivery: Delivery, limit: int | None = None) -> list[dict[str, Any]]:
        """The actions of this delivery's log entry, searched in the newest `limit` entries.

        Empty if the entry is older, or was removed.
        """
        wanted = {"appId": f"{application(delivery)}/{delivery.lineage}", "version": delivery.epoch}
        for body in itertools.islice(self._storage.log_entries(table.version()), limit):
            try:
                actions: list[dict[str, Any]] = [json.loads(line) for line in body.splitlines() if line.strip()]
            except ValueError:
                continue
            found = [{key: action["txn"].get(key) for key in wanted} for action in actions if "txn" in action]
            if wanted in found:
                return actions
        return []

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise our own errors instead of those of delta-rs, except for a lost race, which `settle` handles."""
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError

        try:
            yield
        except CommitFailedError:
            raise
        except (DeltaProtocolError, SchemaMismatchError) as error:
            raise self._not_taken(error, Invalid) from error
        except (DeltaError, OSError) as error:
            unchanged = "what the table's readers see"
            raise self._storage.trouble(error, unchanged) or self._not_taken(error) from error

    def _not_taken(self, error: Exception, kind: type[HoldfastError] = Unavailable) -> HoldfastError:
        return kind(
            f"The table refused a commit: {one_line(error)}",
            code="sink.delta",
            about=self.address,
            unchanged="what the table's readers see",
            next_step="remove the cause, and try again",
        )
