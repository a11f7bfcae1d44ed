"""`Directory`: a tree of files that others write as well, such as the one in which Spark keeps its checkpoint."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

Bytes = bytes | bytearray | memoryview


class FileStamp(NamedTuple):
    """Size and version of a file in a listing. As long as the stamp is the same, so is the content."""

    size: int
    version: int | str
    """On a disk, the time of the last change in nanoseconds; on object storage, the entity tag."""


class Directory(Protocol):
    """A place with files in it. Paths are relative to it, with slashes.

    What is not there is `FileNotFoundError`. On a disk other failures are `OSError`s too, elsewhere `Unavailable`.
    """

    address: str
    """As Spark is given it: `file:///...`, `s3a://...`."""

    lists_cheaply: bool
    """Whether a listing costs next to nothing, or a request for each thousand files."""

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder, hidden ones as well. Empty if there is no such folder."""

    def files(self) -> Iterator[tuple[str, FileStamp]]:
        """Every file in the tree that is not hidden and in no hidden folder."""

    def exists(self, path: str) -> bool:
        """Whether there is anything of that name."""

    def stamps(self, paths: Iterable[str]) -> dict[str, FileStamp]:
        """The stamps of those among `paths` that are files."""

    def identities(self, paths: Iterable[str]) -> dict[str, str]:
        """For each of `paths` that is there, a text that changes whenever the file is written again, also with the same
        bytes or within the resolution of its times."""

    def read(self, path: str) -> bytes:
        """A file's bytes."""

    def read_range(self, path: str, start: int, length: int) -> tuple[bytes, int]:
        """Some of a file's bytes, fewer where it ends, and the size of the whole file."""

    def write(self, path: str, body: bytes) -> None:
        """Write a file, whole or not at all, in place of one that may be there. Folders are made as needed."""

    def write_new(self, files: Iterable[tuple[str, Bytes]]) -> None:
        """Write files into a directory that nobody uses yet, quickly: a crash may leave some of them, or parts."""

    def remove(self, path: str) -> None:
        """Remove a file. Fine if it is gone."""

    def remove_folders(self, prefix: str) -> None:
        """Remove every folder of the topmost level whose name begins with `prefix`, as far as possible."""


@runtime_checkable
class TakesParts(Protocol):
    """A `Directory` in which a file can be written part by part, in any order."""

    def write_part(self, path: str, offset: int, body: Bytes) -> None:
        """Write a part of a file, as `write_new`."""


class NewFile(Protocol):
    """A file or an object that is written from its beginning to its end, for one thread at a time."""

    def write(self, piece: Bytes) -> None:
        """Add to its end. The piece may be used for something else afterwards; few of them are kept in memory."""

    def close(self) -> None:
        """Finish it."""

    def abandon(self) -> None:
        """Give it up. Raises nothing; also fine once it is closed."""


@runtime_checkable
class TakesPieces(Protocol):
    """A `Directory` in which a large file can be written piece by piece, in order."""

    def new_file(self, path: str) -> NewFile:
        """Begin a file, as `write_new`."""


class LocalDirectory:
    """A `Directory` on a disk. It need not exist: then it is empty."""

    lists_cheaply = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.fspath(root)
        self._made: set[str] = set()
        self.address = f"file://{self._root}"  # not escaped: Hadoop would take %20 for a part of the name

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self) -> Iterator[tuple[str, FileStamp]]:
        yield from self._walk("")

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def stamps(self, paths: Iterable[str]) -> dict[str, FileStamp]:
        found = {path: self._stat(path) for path in paths}
        return {path: FileStamp(file.st_size, file.st_mtime_ns) for path, file in found.items() if file is not None}

    def identities(self, paths: Iterable[str]) -> dict[str, str]:
        found = {path: self._stat(path) for path in paths}
        return {
            path: f"{file.st_size}:{file.st_mtime_ns}:{file.st_ctime_ns}:{file.st_ino}"
            for path, file in found.items()
            if file is not None
        }

    def read(self, path: str) -> bytes:
        with open(self._path(path), "rb") as file:
            return file.read()

    def read_range(self, path: str, start: int, length: int) -> tuple[bytes, int]:
        with open(self._path(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(start)
            return file.read(length), size

    def write(self, path: str, body: bytes) -> None:
        target = self._path(path)
        folder, name = os.path.split(target)
        os.makedirs(folder, exist_ok=True)
        aside = os.path.join(folder, f"{name if name.startswith('.') else f'.{name}'}.new")
        with open(aside, "wb") as file:
            file.write(body)
        os.rename(aside, target)

    def write_new(self, files: Iterable[tuple[str, Bytes]]) -> None:
        for path, body in files:
            with open(self._in_folder(path), "wb") as file:  # buffered: it writes all or raises
                file.write(body)

    def write_part(self, path: str, offset: int, body: Bytes) -> None:
        with open(os.open(self._in_folder(path), os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.seek(offset)
            file.write(body)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(path))

    def remove_folders(self, prefix: str) -> None:
        for name in self.names(""):
            if name.startswith(prefix):
                shutil.rmtree(self._path(name), ignore_errors=True)

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _in_folder(self, path: str) -> str:
        target = self._path(path)
        folder = os.path.dirname(target)
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)
        return target

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            found = os.stat(self._path(path))
        except OSError:
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def _walk(self, below: str) -> Iterator[tuple[str, FileStamp]]:
        try:
            entries = list(os.scandir(self._path(below)))
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
