"""Writing large files while their parts are read from batch objects, none of them twice and none of them kept.

A checkpoint lists the objects with a file's parts in the order of the parts, since that is how they were packed. So on
a medium that takes a file only from its beginning to its end, each object waits for its turn. Whatever is not in that
order is noted, to be read once more when everything else is there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.pipeline.workdir.entries import Part
from holdfast.storage.files.directory import Bytes, NewFile, TakesPieces

LARGE = 8 << 20
"""From this many bytes on a file is written piece by piece: as a whole it would be in memory once more."""


class LargeFiles:
    """The large files of one restore. Several threads may write, each the parts in another object."""

    def __init__(self, directory: TakesPieces) -> None:
        self._directory = directory
        self._begun: dict[str, tuple[NewFile, int]] = {}
        """Files with the number of bytes that are written."""
        self._turn = threading.Condition()
        self._next = 0
        self._failed: float = math.inf
        """The first place that could not be written."""
        self.out_of_order: set[str] = set()
        """The files whose parts did not come one after the other. They are not written."""

    def write(self, place: int, parts: Sequence[tuple[Part, Bytes]]) -> None:
        """Write the parts that the object at this place in the order holds. Each place has its turn, if with none."""
        with self._in_order(place):
            whole = [file for part, data in parts if (file := self._append(part, data)) is not None]
        for file in whole:
            try:
                file.close()
            except BaseException:
                file.abandon()
                raise

    def close(self) -> None:
        """Give up what is not whole."""
        for file, _ in self._begun.values():
            file.abandon()
        self._begun.clear()

    @contextmanager
    def _in_order(self, place: int) -> Iterator[None]:
        """Wait for the places before this one. `RuntimeError` if one of them has failed: it will tell why."""
        with self._turn:
            self._turn.wait_for(lambda: self._next == place or self._failed < place)
            if self._failed < place:
                raise RuntimeError("an object before this one could not be restored")
        yield
        with self._turn:
            self._next += 1
            self._turn.notify_all()

    def fail(self, place: int) -> None:
        """Let nobody wait any longer for this place: it will not be written."""
        with self._turn:
            self._failed = min(place, self._failed)
            self._turn.notify_all()

    def _append(self, part: Part, data: Bytes) -> NewFile | None:
        """Write a part; returns the file if it is whole now."""
        if part.path in self.out_of_order:
            return None
        file, written = self._begun.pop(part.path, (None, 0))
        if part.offset != written:
            self.out_of_order.add(part.path)
            if file is not None:
                file.abandon()
            return None
        file = file or self._directory.new_file(part.path)
        self._begun[part.path] = file, written + part.length
        file.write(data)
        if written + part.length < part.whole:
            return None
        del self._begun[part.path]
        return file
