"""A `Directory` on object storage: a folder of an object store, which Spark writes through its own connector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from holdfast.base.parallel import in_parallel
from holdfast.errors import NotFound
from holdfast.storage.files.directory import Bytes, FileStamp, NewFile
from holdfast.storage.objects.cloud import CloudObjects
from holdfast.storage.objects.store import ObjectInfo, ObjectStore, WritesPieces

AT_ONCE = 32
"""Requests under way at a time."""

SMALL = 1 << 20
"""A file of so many bytes is read together with its stamp: a request that only looks costs as much."""

AHEAD = 64 << 20
"""Bytes of small files that are kept until they are read."""

MANY_FINAL = 256
"""Files that never change which are kept in memory, the newest ones."""

FILE_LIMIT = 8 << 30

T = TypeVar("T")
R = TypeVar("R")


class ObjectDirectory:
    """The `Directory` of the objects below one folder.

    Object storage has no folders: Hadoop's connectors leave empty objects for them, which are passed over here. None of
    Spark's files is empty, so an empty one counts as missing.
    """

    lists_cheaply = False

    def __init__(
        self, objects: ObjectStore, folder: str, address: str, is_final: Callable[[str], bool] = lambda path: False
    ) -> None:
        """`is_final` tells which files hardly ever change once they are there: they are read once for each stamp."""
        self.address = address
        self._is_final = is_final
        self._final: dict[str, tuple[FileStamp | None, bytes]] = {}
        """Bodies, each with the stamp that was seen before it was read."""
        self._seen: dict[str, FileStamp] = {}
        """The newest stamps of the files that are final."""
        self._objects = objects
        self._folder = folder.strip("/")
        self._ahead: dict[str, bytes] = {}
        self._ahead_bytes = 0

    def names(self, folder: str) -> list[str]:
        below = f"{folder}/" if folder else ""
        return sorted({path[len(below) :].partition("/")[0] for path, _ in self._list(below)})

    def files(self) -> Iterator[tuple[str, FileStamp]]:
        for path, info in self._list(""):
            if not any(part.startswith(".") for part in path.split("/")):
                self._note(path, _stamp(info))
                yield path, _stamp(info)

    def exists(self, path: str) -> bool:
        info = self._objects.info(self._key(path))
        return info is not None and info.size > 0

    def stamps(self, paths: Iterable[str]) -> dict[str, FileStamp]:
        """Small files are read as well, for the `read` that follows."""
        wanted = list(paths)
        if not wanted:
            return {}
        self._ahead, self._ahead_bytes = {}, 0
        found = dict(in_parallel(self._look, wanted, at_once=AT_ONCE, name="files"))
        stamps = {path: _stamp(info) for path, info in found.items() if info is not None and info.size}
        for path, stamp in stamps.items():
            self._note(path, stamp)
        return stamps

    def identities(self, paths: Iterable[str]) -> dict[str, str]:
        wanted = set(paths)
        return {path: f"{info.size}:{info.version or info.modified}" for path, info in self._list("") if path in wanted}

    def read(self, path: str) -> bytes:
        if path in self._final:
            return self._final[path][1]
        stamp = self._seen.get(path)
        known = self._ahead.pop(path, None)
        if known is not None:
            self._ahead_bytes -= len(known)
        else:
            known = self._found(path, lambda: self._objects.read(self._key(path), limit=FILE_LIMIT))
        if known and self._is_final(path) and len(known) <= SMALL:
            while len(self._final) >= MANY_FINAL:
                del self._final[next(iter(self._final))]
            self._final[path] = stamp, known
        return known

    def read_range(self, path: str, start: int, length: int) -> tuple[bytes, int]:
        info = self._objects.info(self._key(path))
        if info is None:
            raise FileNotFoundError(2, "it is not there", path)
        pieces = self._objects.stream(self._key(path), start=start, length=length)
        return self._found(path, lambda: b"".join(pieces)), info.size

    def write(self, path: str, body: bytes) -> None:
        self._write(path, body)

    def write_new(self, files: Iterable[tuple[str, Bytes]]) -> None:
        in_parallel(lambda file: self._write(*file), files, at_once=AT_ONCE, name="files")

    def new_file(self, path: str) -> NewFile:
        """By a handle of its own: several threads write."""
        objects = copy.copy(self._objects)
        assert isinstance(objects, WritesPieces), f"{self.address} takes no object in pieces"
        return objects.writer(self._key(path))

    def remove(self, path: str) -> None:
        self._objects.delete([self._key(path)])

    def remove_folders(self, prefix: str) -> None:
        """Also the empty objects that stand for folders."""
        listed = self._objects.list(self._folder + "/" if self._folder else "")
        below = self._key(prefix)
        self._objects.delete([info.key for info in listed if info.key.startswith(below)])

    def _write(self, path: str, body: Bytes) -> None:
        """By a handle of its own: several threads write."""
        copy.copy(self._objects).update(self._key(path), lambda _: bytes(body), limit=0, is_hint=True)

    def _note(self, path: str, stamp: FileStamp) -> None:
        """Forget a body that was read under another stamp."""
        if self._is_final(path):
            self._seen[path] = stamp
            if self._final.get(path, (stamp,))[0] != stamp:
                del self._final[path]

    def _key(self, path: str) -> str:
        return f"{self._folder}/{path}" if self._folder else path

    def _list(self, below: str) -> Iterator[tuple[str, ObjectInfo]]:
        root = f"{self._folder}/" if self._folder else ""
        for info in self._objects.list(root + below):
            if info.size:
                yield info.key[len(root) :], info

    def _look(self, path: str) -> tuple[str, ObjectInfo | None]:
        if not isinstance(self._objects, CloudObjects):
            return path, self._objects.info(self._key(path))
        info, body = self._objects.info_and_body(self._key(path), limit=SMALL)
        if body is not None and self._ahead_bytes + len(body) <= AHEAD:
            self._ahead[path] = body
            self._ahead_bytes += len(body)
        return path, info

    def _found(self, path: str, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except NotFound:
            raise FileNotFoundError(2, "it is not there", path) from None


def folders(objects: ObjectStore) -> list[str]:
    """The names of the topmost folders of an object store."""
    if isinstance(objects, CloudObjects):
        return objects.folders()
    return sorted({info.key.partition("/")[0] for info in objects.list("") if "/" in info.key})


def _stamp(info: ObjectInfo) -> FileStamp:
    return FileStamp(info.size, info.version or int(info.modified * 1e9))
