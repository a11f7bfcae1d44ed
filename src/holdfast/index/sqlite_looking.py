"""Looking into a SQLite index: connections that cannot write, beside the process that has it open."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from urllib.parse import quote

from holdfast.index.records import newer
from holdfast.index.sqlite import APPLICATION_ID, PATIENCE, READ, SCAN, SCHEMA
from holdfast.index.sqlite_errors import OF_AN_INDEX
from holdfast.storage.kv.backend import Space
from holdfast.storage.kv.errors import not_there


class SqliteLooker:
    """A connection per read, so that a scan sees one moment and a later read the next one."""

    def __init__(self, path: str) -> None:
        self.address = f"sqlite://{quote(path)}"
        self._path = os.path.realpath(path)
        if not os.path.isfile(self._path):
            raise not_there("index", self.address)
        with self._connected() as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise not_there("index", self.address)
        if application != APPLICATION_ID:
            raise OF_AN_INDEX.foreign(self.address)
        if version > SCHEMA:
            raise newer(self.address, f"its tables have version {version}, this release reads up to {SCHEMA}")

    def read(self, space: Space, key: bytes) -> bytes | None:
        with self._connected() as connection:
            row = connection.execute(READ[space], (key,)).fetchone()
        return None if row is None else row[0]

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._connected() as connection:
            for row in connection.execute(SCAN[space], (prefix,)):
                if not row[0].startswith(prefix):
                    return
                yield row

    def close(self) -> None:
        """Nothing stays open between reads."""

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro", PATIENCE, uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise OF_AN_INDEX.explained(error, self.address) from error
