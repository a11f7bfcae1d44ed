"""`SparkCheckpoint` reads a checkpoint directory of Spark's: where its logs stand, what is damaged.

Works on any directory that can be listed and read. Needs no Spark, changes nothing, and knows nothing of Holdfast's
checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from holdfast.errors import Corrupt
from holdfast.sparkdir.checksums import checksum_path, matches_checksum, orphaned_checksums
from holdfast.sparkdir.directory import ReadableDirectory
from holdfast.sparkdir.logs import CommittedBatch, PlannedBatch, parse_commit, parse_offsets, parse_query_id
from holdfast.sparkdir.state_files import is_newer_than
from holdfast.storage.files.directory import FileStamp

NAMES = frozenset({"metadata", "offsets", "commits", "sources", "state", ".metadata.crc"})
"""The names of Spark's files and folders at the top of a checkpoint directory."""


class Logs(msgspec.Struct, frozen=True):
    """Where Spark's logs stand. A log that cannot be read is reported as `problem`, not raised."""

    query_id: str | None = None
    offsets: tuple[int, ...] = ()
    commits: tuple[int, ...] = ()
    problem: str | None = None

    @property
    def planned(self) -> int:
        """The newest batch that was planned, -1 if none was."""
        return self.offsets[-1] if self.offsets else -1

    @property
    def committed(self) -> int:
        """The newest batch that Spark itself counts as done, -1 if none."""
        return self.commits[-1] if self.commits else -1


class SparkCheckpoint:
    """Spark's checkpoint directory. Every call reads it afresh: Spark may be writing to it."""

    def __init__(self, directory: ReadableDirectory) -> None:
        self._directory = directory

    def query_id(self) -> str:
        """The id of the query, which never changes. `Corrupt` if the file is missing or torn."""
        return parse_query_id(self._text("metadata"), "metadata")

    def planned(self, batch_id: int) -> PlannedBatch:
        """What Spark planned for one batch. `Corrupt` if its file is missing or torn."""
        about = f"offsets/{batch_id}"
        return parse_offsets(self._text(about), about)

    def committed(self, batch_id: int) -> CommittedBatch:
        """What Spark recorded when a batch was done. `Corrupt` if its file is missing or torn."""
        about = f"commits/{batch_id}"
        return parse_commit(self._text(about), about)

    def has_committed(self, batch_id: int) -> bool:
        """Whether Spark counts this batch as done."""
        return self._directory.exists(f"commits/{batch_id}")

    def logs(self) -> Logs:
        """Read both logs as a restart of Spark would. `Invalid` only for log formats that are not known here."""
        offsets, commits = self._numbers("offsets"), self._numbers("commits")
        if not offsets and not commits and not self._directory.exists("metadata"):
            return Logs()
        query_id = None
        problem = None
        try:
            query_id = self.query_id()
            if offsets:
                self.planned(offsets[-1])
            if commits:
                self.committed(commits[-1])
        except Corrupt as error:
            problem = error.message
        return Logs(query_id, offsets, commits, problem)

    def files(self) -> Iterator[tuple[str, FileStamp]]:
        """Every file that Spark can see: nothing hidden."""
        return self._directory.files()

    def read(self, path: str) -> bytes:
        """A file's bytes. `FileNotFoundError` if it is gone."""
        return self._directory.read(path)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, hidden ones as well; empty if there is no such folder."""
        return self._directory.names(folder)

    def unknown_names(self) -> set[str]:
        """The names at the top of the directory that are not Spark's."""
        return set(self._directory.names("")) - NAMES

    def damage_after(self, batch_id: int, checked: Collection[str]) -> str | None:
        """The first damaged file that Spark wrote for `batch_id` or later, by its checksum; None if there is none.

        Files in `checked` are known to be right and are not read.
        """
        for folder in ("offsets", "commits"):
            for name in sorted(orphaned_checksums(self._directory.names(folder))):
                if name.isascii() and name.isdigit() and int(name) >= batch_id:
                    return f"{folder}/{name} is gone"
        for path, _ in self.files():
            if path not in checked and is_newer_than(path, batch_id) and self._differs_from_checksum(path):
                return f"{path} is not what Spark wrote"
        return None

    def _differs_from_checksum(self, path: str) -> bool:
        """False if there are no checksums, or if the file is gone meanwhile."""
        try:
            checksum = self._directory.read(checksum_path(path))  # first: object storage has none
            return not matches_checksum(self._directory.read(path), checksum)
        except OSError:
            return False

    def _text(self, path: str) -> str:
        try:
            return self._directory.read(path).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise Corrupt(f"{path} cannot be read: {error}.", code="workdir.log", about=path) from None

    def _numbers(self, folder: str) -> tuple[int, ...]:
        names = self._directory.names(folder)
        return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))
