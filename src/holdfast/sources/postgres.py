"""An index in a PostgreSQL database, in tables that all indexes there share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from holdfast.errors import HoldfastError, Invalid
from holdfast.sources.backend import Change, Space
from holdfast.sources.pending import Pending
from holdfast.sources.postgres_commit import Writer
from holdfast.sources.postgres_server import Connection, connect, explained, lost, parse, translated
from holdfast.sources.postgres_tables import SPACES
from holdfast.sources.prefixes import end_of

CHUNK = 4 << 20
PAGE = 500
SETTLE_SECONDS = 30.0

log = logging.getLogger("holdfast.sources")


class PostgresBackend:
    """One index under one name; opening it fences whoever had it open before, after their transaction under way.

    A transaction of more than a few megabytes goes to the server while it is written, so that it may be larger than
    memory. Reads and scans use connections of their own and see what is committed; a scan is of one moment.

    Durable when `commit` returns, whatever the server's `synchronous_commit` is. If the reply to COMMIT is lost,
    `commit` connects again, trying for `settle_seconds`, and finds out what became of it.
    """

    is_persistent = True

    def __init__(self, url: str, *, settle_seconds: float = SETTLE_SECONDS) -> None:
        self._at = parse(url)
        self.address = self._at.shown
        self._lock = threading.RLock()
        self._pending = Pending()
        self._failed: HoldfastError | None = None
        self._closed = False
        self._idle: list[Connection] = []
        self._scanning: set[Connection] = set()
        self.durability = ""
        """What the server keeps of what it acknowledges: a sentence about it, without the full stop."""
        with translated("opening the index", self.address):
            self._writer = Writer(self._at, settle_seconds)
        try:
            self._look_at_durability()
        except BaseException:
            self.close()
            raise

    def read(self, space: Space, key: bytes) -> bytes | None:
        rows = self._fetched(SPACES[space].read, [self._writer.index_id, key])
        found: bytes | None = rows[0][0] if rows else None
        return found

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        end = end_of(prefix)
        query = SPACES[space].scan if end is None else SPACES[space].scan_to
        arguments = [self._writer.index_id, prefix] if end is None else [self._writer.index_id, prefix, end]
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
                    raise explained(error, "reading", self.address) from None
            finally:
                self._give_back(connection)

    def write(self, changes: Sequence[Change]) -> None:
        self._check_open()
        if self._failed:
            raise self._failed
        self._pending.add(changes)
        if self._pending.size > CHUNK:
            try:
                self._send()
            except HoldfastError as error:
                self._writer.rollback()
                self._pending = Pending()
                self._failed = error
                raise

    def commit(self) -> None:
        self._check_open()
        failed, self._failed = self._failed, None
        if failed:
            self.rollback()
            raise failed
        try:
            if self._pending:
                self._send()
            if self._writer.is_open:
                with translated("committing", self.address):
                    self._writer.commit()
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        self._pending = Pending()
        self._failed = None
        if not self._closed:
            self._writer.rollback()

    def close(self) -> None:
        if self._closed:
            return
        self.rollback()
        self._closed = True
        self._writer.drop()
        with self._lock:
            for connection in (*self._idle, *self._scanning):
                connection.close()
            self._idle.clear()

    def _send(self) -> None:
        pending, self._pending = self._pending, Pending()
        with translated("writing", self.address):
            self._writer.write(pending)

    def _fetched(self, query: Any, arguments: list[Any]) -> list[tuple[Any, ...]]:
        """The rows of a query; asked once more on a new connection if the old one turns out to be broken."""
        with translated("reading", self.address):
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

    def _borrowed(self, *, new: bool = False) -> Connection:
        self._check_open()
        with self._lock:
            connection = self._idle.pop() if self._idle and not new else None
        if connection is None:
            with translated("connecting", self.address):
                connection = connect(self._at)
        with self._lock:
            self._scanning.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            self._scanning.discard(connection)
            if connection.closed or self._closed or self._idle:
                connection.close()
            else:
                self._idle.append(connection)

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("The index was closed.", code="index.closed", about=self.address, next_step="open it again")

    def _look_at_durability(self) -> None:
        row = self._fetched("SELECT current_setting('fsync'), current_setting('full_page_writes')", [])[0]
        if row == ("on", "on"):
            self.durability = "each commit waits for the server's disk; a standby that takes over may lack the newest"
        else:
            self.durability = "the server does not sync (fsync or full_page_writes is off): a power loss may ruin it"
            log.warning("%s: %s.", self.address, self.durability)
