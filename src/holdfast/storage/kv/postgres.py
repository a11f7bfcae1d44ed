"""An index in a PostgreSQL database, in tables that all indexes there share."""

from __future__ import annotations

import logging

from holdfast.base import forks
from holdfast.errors import HoldfastError
from holdfast.storage.kv.backend import Changes
from holdfast.storage.kv.pending import Pending
from holdfast.storage.kv.postgres_commit import Writer
from holdfast.storage.kv.postgres_reader import Reader
from holdfast.storage.kv.postgres_server import parse, translated

CHUNK = 4 << 20
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
        self._reader = Reader(self._at)
        self.read = self._reader.read
        self.scan = self._reader.scan
        self._pending = Pending()
        self._failed: HoldfastError | None = None
        self._closed = False
        self.durability = ""
        """What the server keeps of what it acknowledges: a sentence about it, without the full stop."""
        with translated("opening the index", self.address):
            self._writer = Writer(self._at, settle_seconds)
        self._reader.index_id = self._writer.index_id
        forks.opened(self)
        try:
            self._look_at_durability()
        except BaseException:
            self.close()
            raise

    def write(self, changes: Changes) -> None:
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
        forks.closed(self)
        self.rollback()
        self._closed = True
        self._writer.drop()
        self._reader.close()

    def forget_in_child(self) -> None:
        self._writer.cut_off()
        self._reader.forget_in_child()  # before it is closed below, whichever of us is told first
        self.close()

    def _send(self) -> None:
        pending, self._pending = self._pending, Pending()
        with translated("writing", self.address):
            self._writer.write(pending)

    def _check_open(self) -> None:
        if self._closed:
            raise forks.closed_or_forked(self.address)

    def _look_at_durability(self) -> None:
        row = self._reader.fetched("SELECT current_setting('fsync'), current_setting('full_page_writes')", [])[0]
        if row == ("on", "on"):
            self.durability = "each commit waits for the server's disk; a standby that takes over may lack the newest"
        else:
            self.durability = "the server does not sync (fsync or full_page_writes is off): a power loss may ruin it"
            log.warning("%s: %s.", self.address, self.durability)
