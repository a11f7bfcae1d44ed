"""Looking into a store in SQLite: connections that cannot write, beside the processes that have it open."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from holdfast.index.sqlite_errors import OF_A_STORE
from holdfast.projections.backend import Row, Space
from holdfast.projections.looking import not_there
from holdfast.projections.records import newer
from holdfast.projections.sqlite import APPLICATION_ID, PATIENCE, SCHEMA, read_from, scan_from


class SqliteLooker:
    """A connection of its own, in which each read sees one moment and a later one the next."""

    is_persistent = True
    has_sql = True

    def __init__(self, path: str) -> None:
        self.address = f"sqlite://{quote(path)}"
        self._path = os.path.realpath(path)
        if not os.path.isfile(self._path):
            raise not_there(self.address)
        self._reading = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro", PATIENCE, uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise OF_A_STORE.explained(error, self.address) from error
        try:
            self._check_ours()
        except BaseException:
            self.close()
            raise

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._connected() as connection:
            return read_from(connection, space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        with self._connected() as connection:
            return scan_from(connection, space, start, end, limit)

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        with self._reading:
            return self._connection.execute(sql, parameters).fetchall()

    def close(self) -> None:
        self._connection.close()

    def _check_ours(self) -> None:
        with self._connected() as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise not_there(self.address)
        if application != APPLICATION_ID:
            raise OF_A_STORE.foreign(self.address)
        if version > SCHEMA:
            raise newer(self.address, f"its tables have version {version}, this release reads up to {SCHEMA}")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._reading:  # threads that shared a transaction would end each other's
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise OF_A_STORE.explained(error, self.address) from error
