"""`_holdfast.json`: the file that names the pipeline and the sink that a directory belongs to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import Conflict, Invalid, NotFound, Unavailable, one_line
from holdfast.storage.objects.local import LocalObjects
from holdfast.storage.objects.store import ObjectStore

OWNER_FILE = "_holdfast.json"
OWNER_LIMIT = 1 << 16
NO_BUCKET = "bucket.not-found"


class DirectoryOwner(msgspec.Struct, frozen=True):
    """The file's content: the sink that the directory belongs to, and how its epochs are written."""

    pipeline: str
    sink: str
    format: str
    epoch_column: str


class OwnerFile:
    """The owner file of one directory, on a disk or on object storage."""

    def __init__(
        self, objects: ObjectStore, key: str, *, directory: str, names: Callable[[], Iterable[str]], unready: str
    ) -> None:
        """`names` lists what is in the directory, and `unready` are the words for one that has no owner file."""
        self._objects = objects
        self._key = key
        self._directory = directory
        self._names = names
        self._unready = unready

    def claim(self, mine: DirectoryOwner) -> None:
        """Make `mine` the owner, durably. Fine if it is already. Of two concurrent claims, one succeeds.

        `Invalid` if it belongs to another sink, or has visible files and no owner.
        """
        owner = self.read()
        if owner is None:
            self._require_no_foreign_files()
            with step("sink.claim"):
                owner = self._create(mine)
        self._compare(owner, mine)

    def is_owned(self, mine: DirectoryOwner) -> bool:
        """Whether the directory belongs to `mine`; False if it has no owner yet, `Invalid` if it has another."""
        owner = self.read()
        if owner is not None:
            self._compare(owner, mine)
        return owner is not None

    def require(self, mine: DirectoryOwner) -> None:
        """`Unavailable` if the directory has no owner file, `Invalid` if it has another owner."""
        if not self.is_owned(mine):
            raise self.unready()

    def unready(self) -> Unavailable:
        """The error to raise if the directory has no owner."""
        return Unavailable(
            f"{self._directory} has no {OWNER_FILE}: {self._unready}.",
            code="sink.not-prepared",
            about=self._directory,
            unchanged="everything",
            next_step="mount it, or prepare the sink if the directory is new",
        )

    def read(self) -> DirectoryOwner | None:
        """The owner; None if there is none. `Invalid` if the file makes no sense."""
        try:
            body = self._objects.read(self._key, limit=OWNER_LIMIT)
        except NotFound as error:
            if error.code == NO_BUCKET:
                raise
            return None
        try:
            return json_decoder(DirectoryOwner).decode(body)
        except msgspec.DecodeError as error:
            raise refused_directory(
                f"{OWNER_FILE} cannot be decoded ({one_line(error)}), so the owner of the directory is unknown.",
                self._directory,
                "sink.owner-unknown",
                "restore that file, or give the sink another directory",
            ) from error

    def _create(self, mine: DirectoryOwner) -> DirectoryOwner:
        try:
            self._objects.create(self._key, [msgspec.json.format(msgspec.json.encode(mine))])
        except Conflict:
            return self.read() or mine
        return mine

    def _compare(self, owner: DirectoryOwner, mine: DirectoryOwner) -> None:
        if (owner.pipeline, owner.sink) != (mine.pipeline, mine.sink):
            raise refused_directory(
                f"{self._directory} belongs to sink {owner.sink!r} of pipeline {owner.pipeline!r}.",
                self._directory,
                "sink.owned",
                "give this sink a directory of its own",
            )
        if owner != mine:
            raise refused_directory(
                f"{self._directory} holds {owner.format} with the epoch as {owner.epoch_column!r}, "
                f"not {mine.format} with {mine.epoch_column!r}.",
                self._directory,
                "sink.written-otherwise",
                "keep format and epoch_column as they were, or give the sink a new directory",
            )

    def _require_no_foreign_files(self) -> None:
        foreign = sorted(name for name in self._names() if not name.startswith(("_", ".")))
        if foreign:
            raise refused_directory(
                f"{self._directory} has files in it that are not Holdfast's, for example {foreign[0]!r}. "
                "Readers of the epochs would skip them or take them for epochs.",
                self._directory,
                "sink.foreign-files",
                "give the sink an empty or new directory",
            )


def local_owner_file(path: str) -> OwnerFile:
    """The owner file of a local directory, which need not exist."""
    return OwnerFile(
        LocalObjects(path),
        OWNER_FILE,
        directory=path,
        names=lambda: os.listdir(path) if os.path.isdir(path) else [],
        unready="it is not mounted, or was removed, or never prepared",
    )


def refused_directory(message: str, path: str, code: str, next_step: str) -> Invalid:
    return Invalid(message, code=code, about=path, unchanged="everything in it", next_step=next_step)
