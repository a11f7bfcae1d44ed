"""A Delta table's log, read and written through the `deltalake` package, and made durable, which that does not do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.sinks.delta.table import Json
from holdfast.sinks.durable import sync, sync_all
from holdfast.sinks.sink import Delivery, check_same_delivery

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

ATTEMPTS = 50
LOG = "_delta_log"
MARK = "holdfast.mark"
ENTRIES_SEARCHED = 1000
_LOG_FILE = re.compile(r"(\d{20})\..*")


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
    """The application id in Delta's log: one per pipeline's sink. With `/<lineage>` it counts that lineage's epochs."""
    names = (urllib.parse.quote(name, safe="") for name in (delivery.pipeline, delivery.sink))
    return "/".join(("holdfast", *names))


class DeltaLog:
    """The log of the table at `path`.

    Every commit here is made on top of the version that was looked at, or not at all: delta-rs creates the next log
    entry only if nobody else has, and is told not to try again by itself. So a look at the application's transaction
    and the commit that follows it are one: two drivers with the same epoch get it in once.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._directory = os.path.join(path, LOG)
        self._durable_below = 0

    def exists(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return any(_LOG_FILE.fullmatch(name) for name in os.listdir(self._directory))
        return False

    def create(self, schema: Json) -> None:
        """Create the table without rows, durably. Fine if it is there, also if somebody makes it at the same time."""
        from deltalake import DeltaTable, Schema

        with step("delta.create"), self.explained():
            DeltaTable.create(self.path, Schema.from_json(json.dumps(schema)), mode="ignore")
        self.sync()
        sync(self.path)

    def open(self) -> DeltaTable:
        """The newest version, read anew each time: a handle kept would not notice a table that was replaced."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self.path)
        except TableNotFoundError as error:
            raise Unavailable(
                f"{self.path} holds no Delta table: it is not mounted, or was removed, or never prepared.",
                code="sink.not-prepared",
                about=self.path,
                unchanged="everything",
                next_step="mount it, or prepare the sink if the table is new",
            ) from error
        except DeltaError as error:
            raise Corrupt(
                f"The log of the table cannot be read: {_line(error)}",
                code="sink.delta-log",
                about=self._directory,
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

    def settle(self, delivery: Delivery, mark: str | None, act: Callable[[DeltaTable], None]) -> None:
        """Have `act` commit the delivery on the newest version, unless it is there; try again after a conflict.

        On return it is in the log, whoever committed it, and visible; durable only after `secure_data` and `sync`.
        `Corrupt` if what is there under its name has another mark.
        """
        from deltalake.exceptions import CommitFailedError

        for _ in range(ATTEMPTS):
            table = self.open()
            looked_at = table.version()
            if self.has_same(table, delivery, mark):
                return
            try:
                act(table)
            except CommitFailedError as error:
                if self.open().version() == looked_at:  # then nobody was first
                    raise self._not_taken(error) from error
                continue
            except (HoldfastError, OSError):
                # Whoever commits it clears away what was staged, also from under the feet of somebody slower.
                if self.has_same(self.open(), delivery, mark):
                    return
                raise
            self._require(delivery)
            return
        raise Conflict(
            f"{ATTEMPTS} times in a row somebody else committed to {self.path} first.",
            code="sink.delta-busy",
            about=self.path,
            unchanged=f"{delivery} is still to be committed",
            next_step="try again when fewer write to the table",
        )

    def has_same(self, table: DeltaTable, delivery: Delivery, mark: str | None) -> bool:
        """Is the delivery there? `Corrupt` if so, but of other data, as far as the log still tells."""
        if not self.has(table, delivery):
            return False
        actions = self._entry_of(delivery, ENTRIES_SEARCHED) if mark is not None else []
        found = next((action["commitInfo"].get(MARK) for action in actions if "commitInfo" in action), None)
        check_same_delivery(delivery, mine=mark, found=found, where=self.path)
        return True

    def _require(self, delivery: Delivery) -> None:
        """A commit that the log then does not show must not be made a second time."""
        if not self.has(self.open(), delivery):
            raise OutcomeUnknown(
                f"{delivery} was committed, and the table's log does not show it.",
                code="sink.delta-forgetful",
                about=self.path,
                unchanged="what was staged",
                next_step="look at the table's history before anything is committed again",
            )

    def properties(self, table: DeltaTable, delivery: Delivery, mark: str | None) -> CommitProperties:
        """What makes a commit known as this delivery's, and makes it fail rather than land on another version."""
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
        """Commit files that lie in the table's directory; without any, only that the epoch is there."""
        with step("delta.commit", epoch=delivery.epoch, files=len(adds)), self.explained():
            table.create_write_transaction(
                list(adds),
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=self.properties(table, delivery, mark),
            )

    def sync(self) -> None:
        """Make the log durable: what was added since the last time, and what others left unsynced before that."""
        with step("delta.sync"):
            versions: dict[str, int] = {}
            for name in os.listdir(self._directory):
                found = _LOG_FILE.fullmatch(name)
                if found or name == "_last_checkpoint":
                    versions[name] = int(found[1]) if found else self._durable_below
            new = [name for name, version in versions.items() if version >= self._durable_below]
            for path in (os.path.join(self._directory, name) for name in new):
                with contextlib.suppress(FileNotFoundError):  # cleaned up since, for it was old
                    sync(path)
            sync(self._directory)
            # The newest one again next time: a checkpoint of its version may still be to come.
            self._durable_below = max(versions.values(), default=0)

    def secure_data(self, delivery: Delivery) -> None:
        """Make the files durable that delta-rs itself wrote for this delivery's commit.

        `Corrupt` if one is not there in full: then the machine went down after the log entry was on disk and before
        its files were. Finds nothing to do where the entry has been cleaned up or checkpointed away since.
        """
        with step("delta.sync"):
            paths = []
            for path, size in self._added_by(delivery):
                whole = os.path.join(self.path, path)
                if not _is_whole(whole, size):
                    raise Corrupt(
                        f"{path} is not there in full, though the table's log has {delivery}.",
                        code="sink.delta-torn",
                        about=whole,
                        unchanged="the staged rows",
                        next_step="restore the table to the version before, and rewind the pipeline by an epoch",
                    )
                paths.append(whole)
            sync_all(paths)
            sync_all({os.path.dirname(path) for path in paths})

    def _added_by(self, delivery: Delivery) -> list[tuple[str, int]]:
        files = [action[kind] for action in self._entry_of(delivery) for kind in ("add", "cdc") if kind in action]
        return [(urllib.parse.unquote(file["path"]), file["size"]) for file in files]

    def _entry_of(self, delivery: Delivery, limit: int | None = None) -> list[dict[str, Any]]:
        """The actions of this delivery's log entry, sought from the newest entry back, up to `limit` of them.

        None at all if it is older, or was cleaned up.
        """
        wanted = {"appId": f"{application(delivery)}/{delivery.lineage}", "version": delivery.epoch}
        entries = sorted((name for name in os.listdir(self._directory) if name.endswith(".json")), reverse=True)
        for name in entries[:limit]:
            try:
                with open(os.path.join(self._directory, name), encoding="utf-8") as file:
                    actions: list[dict[str, Any]] = [json.loads(line) for line in file if line.strip()]
            except (FileNotFoundError, ValueError):
                continue
            found = [{key: action["txn"].get(key) for key in wanted} for action in actions if "txn" in action]
            if wanted in found:
                return actions
        return []

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Errors of delta-rs as ours, but for a lost race, which is for `settle`."""
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError

        try:
            yield
        except CommitFailedError:
            raise
        except DeltaProtocolError as error:
            raise self._not_taken(error, Invalid) from error
        except (DeltaError, OSError) as error:
            raise self._not_taken(error) from error

    def _not_taken(self, error: Exception, kind: type[HoldfastError] = Unavailable) -> HoldfastError:
        return kind(
            f"The table did not take a commit: {_line(error)}",
            code="sink.delta",
            about=self.path,
            unchanged="what the table's readers see",
            next_step="see to the cause, and try again",
        )


def _is_whole(path: str, size: int) -> bool:
    """True for a parquet file of this size that ends as one does; after a power cut it may end in zeros."""
    try:
        with open(path, "rb") as file:
            return file.seek(0, os.SEEK_END) == size and file.seek(-4, os.SEEK_END) >= 0 and file.read() == b"PAR1"
    except OSError:
        return False


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
