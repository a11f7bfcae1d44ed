"""A read-only view of a directory tree: listing and reading, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from holdfast.storage.files.directory import FileStamp


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
