"""The connections that a process has to a SQLite database: one that writes, and as many as read at the same time."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence

from holdfast.base import forks

_IDLE_READERS = 4


class Connections:
    """From any thread; whoever writes sees to it that nobody else does meanwhile."""

    def __init__(self, path: str, patience: float, *, of_readers: Sequence[str] = ()) -> None:
        """Wait up to `patience` seconds for somebody else's transaction. `of_readers` are settings of those alone."""
        self._path = path
        self._patience = patience
        self._of_readers = of_readers
        self._idle: list[sqlite3.Connection] = []
        self._readers: set[sqlite3.Connection] = set()
        self.writer: sqlite3.Connection | None = None
        """None before it is opened, and when all of them are closed."""

    def open_writer(self) -> sqlite3.Connection:
        self.writer = self._connect()
        return self.writer

    @contextlib.contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection of one's own: two reads on one would see the older one's moment."""
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._connect()
            for setting in self._of_readers:
                reader.execute(f"PRAGMA {setting}")
            self._readers.add(reader)
        try:
            yield reader
        finally:
            if reader not in self._readers:
                pass  # closed meanwhile, or the parent's, which is not ours to close
            elif len(self._idle) < _IDLE_READERS:
                self._idle.append(reader)
            else:
                self._readers.discard(reader)
                reader.close()

    def close(self) -> None:
        for connection in self._all():
            # After a failure of the disk there is nothing that closing could still save.
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        self._forget()

    def forget_in_child(self) -> None:
        """Not even close: that would undo the parent's transaction, in the memory that both share."""
        for connection in self._all():
            forks.leak(connection)
        self._forget()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, self._patience, isolation_level=None, check_same_thread=False)

    def _all(self) -> list[sqlite3.Connection]:
        return [*self._readers, *([] if self.writer is None else [self.writer])]

    def _forget(self) -> None:
        self._idle, self._readers, self.writer = [], set(), None
