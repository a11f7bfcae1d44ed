"""Reading an index on PostgreSQL, on connections of its own: it sees what is committed, and waits for nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg

from holdfast.base import forks
from holdfast.storage.kv.backend import Space
from holdfast.storage.kv.postgres_server import Connection, PostgresAddress, connect, explained, lost, translated
from holdfast.storage.kv.postgres_tables import SPACES
from holdfast.storage.kv.prefixes import end_of

PAGE = 500


class Reader:
    """Values as they are committed; a scan is of one moment. From any thread."""

    def __init__(self, address: PostgresAddress) -> None:
        self.index_id = 0
        """Which index; to be set before `read` and `scan`."""
        self._at = address
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False
        forks.opened(self)

    def read(self, space: Space, key: bytes) -> bytes | None:
        rows = self.fetched(SPACES[space].read, [self.index_id, key])
        found: bytes | None = rows[0][0] if rows else None
        return found

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        end = end_of(prefix)
        query = SPACES[space].scan if end is None else SPACES[space].scan_to
        arguments = [self.index_id, prefix] if end is None else [self.index_id, prefix, end]
        for is_last in (False, True):
            connection = self._borrowed(new=is_last)
            has_begun = False
            try:
                with connection.transaction(), connection.cursor("scan") as cursor:
                    cursor.itersize = PAGE
                    cursor.execute(query, arguments, binary=True)
                    for row in cursor:
                        has_begun = True
                        yield row[0], row[1]
                        self._check_open()
                return
            except psycopg.Error as error:
                self._check_open()
                if is_last or has_begun or not lost(error):
                    raise explained(error, "reading", self._at.shown) from None
            finally:
                self._give_back(connection)

    def fetched(self, query: Any, arguments: list[Any]) -> list[tuple[Any, ...]]:
        """The rows of a query; asked once more on a new connection if the old one turns out to be broken."""
        with translated("reading", self._at.shown):
            for is_last in (False, True):
                connection = self._borrowed(new=is_last)
                try:
                    return connection.execute(query, arguments, binary=True).fetchall()
                except psycopg.Error as error:
                    self._check_open()
                    if is_last or not lost(error):
                        raise
                finally:
                    self._give_back(connection)
        raise AssertionError("the second try either returns or raises")

    def close(self) -> None:
        """Scans that are under way end with an error."""
        forks.closed(self)
        self._closed = True
        with self._lock:
            for connection in (*self._idle, *self._busy):
                connection.close()
            self._idle.clear()

    def forget_in_child(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent's may hold it, and will never let go of it here
        for connection in (*self._idle, *self._busy):
            cut_off(connection)
        self.close()

    def _borrowed(self, *, new: bool) -> Connection:
        self._check_open()
        with self._lock:
            connection = self._idle.pop() if self._idle and not new else None
        if connection is None:
            with translated("connecting", self._at.shown):
                connection = connect(self._at)
        with self._lock:
            self._busy.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            if connection.closed or self._closed or self._idle:
                connection.close()
            else:
                self._idle.append(connection)

    def _check_open(self) -> None:
        if self._closed:
            raise forks.closed_or_forked(self._at.shown)


def cut_off(connection: Connection) -> None:
    """In a forked child: whatever is done with the connection from now on, closing it too, the server does not hear."""
    if not connection.closed:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, connection.fileno())
        os.close(nothing)
