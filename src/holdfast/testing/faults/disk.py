"""A disk that runs full, turns read-only or breaks, at any operation that a test chooses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from holdfast.storage.files.disk import Disk, Entry
from holdfast.storage.objects.store import Chunks


class FaultyDisk:
    """A `Disk` that wraps another one and fails where `fail` returns an error.

    `fail(number, name)` is called before each operation with the number of operations before it and with its name, as
    in the steps of `PosixDisk`; reads are `file.open`, `path.entry`, `directory.scan`, `directory.lock`. It returns the
    error to raise instead of the operation, such as `OSError(errno.ENOSPC, "disk full")`, or None. A `file.fill` that
    fails has written half of the content; a `file.sync` that fails, all of it.
    """

    def __init__(self, disk: Disk, fail: Callable[[int, str], OSError | None]) -> None:
        self._disk = disk
        self._fail = fail
        self.operations: list[str] = []
        """The name of each operation so far, also of those that failed."""

    def make_directory(self, path: str) -> None:
        self._ask("directory.make")
        self._disk.make_directory(path)

    def write_file(self, path: str, chunks: Chunks, *, sync: bool = True) -> None:
        self._ask("file.write")
        body = b"".join(chunks)
        try:
            self._ask("file.fill")
        except OSError:
            self._disk.write_file(path, [body[: len(body) // 2]])
            raise
        self._disk.write_file(path, [body], sync=sync)
        if sync:
            self._ask("file.sync")

    def link(self, existing: str, new: str) -> None:
        self._ask("file.link")
        self._disk.link(existing, new)

    def rename(self, old: str, new: str) -> None:
        self._ask("file.rename")
        self._disk.rename(old, new)

    def remove_file(self, path: str) -> None:
        self._ask("file.remove")
        self._disk.remove_file(path)

    def remove_directory(self, path: str) -> None:
        self._ask("directory.remove")
        self._disk.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._ask("directory.sync")
        self._disk.sync_directory(path)

    def open_file(self, path: str) -> BinaryIO:
        self._ask("file.open")
        return self._disk.open_file(path)

    def entry(self, path: str) -> Entry:
        self._ask("path.entry")
        return self._disk.entry(path)

    def scan(self, path: str) -> list[Entry]:
        self._ask("directory.scan")
        return self._disk.scan(path)

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        self._ask("directory.lock")
        with self._disk.locked(path):
            yield

    def _ask(self, name: str) -> None:
        number = len(self.operations)
        self.operations.append(name)
        error = self._fail(number, name)
        if error is not None:
            raise error
