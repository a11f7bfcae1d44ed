"""`ObjectFile`: an object as a file that can be read from any position."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from holdfast.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class ObjectFile(io.RawIOBase):
    """An object of known size, for pyarrow. Each read is a request for that range, and nothing is kept.

    Through our own client, not that of `deltalake`: a merge reads its source while it is at work, and its client cannot
    wait for a request from inside one of its own threads.
    """

    def __init__(self, objects: ObjectStore, key: str, size: int) -> None:
        self._objects, self._key, self._size, self._at = objects, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        into = memoryview(buffer).cast("B")
        wanted = max(0, min(len(into), self._size - self._at))
        done = 0
        for piece in self._objects.stream(self._key, start=self._at, length=wanted):
            view = memoryview(piece).cast("B")
            into[done : done + len(view)] = view
            done += len(view)
        self._at += done
        return done
