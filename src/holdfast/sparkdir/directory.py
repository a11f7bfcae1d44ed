"""A read-only view of a directory tree: listing and reading, nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol


class FileStamp(NamedTuple):
    """Size and version of a file in a listing. As long as the stamp is the same, so is the content."""

    size: int
    version: int
    """On a disk, the time of the last change in nanoseconds."""


class ReadableDirectory(Protocol):
    """Any place that can list and read a directory tree. Paths are relative to it, with slashes."""

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder, hidden ones as well. Empty if there is no such folder."""

    def files(self) -> Iterator[tuple[str, FileStamp]]:
        """Every file in the tree that is not hidden and in no hidden folder."""

    def read(self, path: str) -> bytes:
        """A file's bytes. `OSError` if it cannot be read."""

    def exists(self, path: str) -> bool:
        """Whether there is anything of that name."""


class LocalDirectory:
    """A directory on a disk. It need not exist: then it is empty."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.fspath(root)

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(os.path.join(self._root, folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self) -> Iterator[tuple[str, FileStamp]]:
        yield from self._walk("")

    def read(self, path: str) -> bytes:
        with open(os.path.join(self._root, path), "rb") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        return os.path.exists(os.path.join(self._root, path))

    def _walk(self, below: str) -> Iterator[tuple[str, FileStamp]]:
        try:
            entries = list(os.scandir(os.path.join(self._root, below)))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path)
            else:
                try:
                    found = entry.stat()
                except FileNotFoundError:  # Spark removes old files while we list
                    continue
                yield path, FileStamp(found.st_size, found.st_mtime_ns)
