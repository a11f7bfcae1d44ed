"""An index on Redis, Valkey or Garnet: for each space a hash of its values, and a sorted set of its keys, for order."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.storage.kv.backend import Changes
from holdfast.storage.kv.pending import LIMIT, Pending, too_large
from holdfast.storage.kv.redis_client import Server
from holdfast.storage.kv.redis_commit import Committer
from holdfast.storage.kv.redis_reading import Reader
from holdfast.storage.kv.redis_server import parse

SETTLE_SECONDS = 30.0


class RedisBackend:
    """One index under one name; opening it fences whoever had it open before.

    A transaction is kept in memory, up to `limit` bytes, and sent when it is committed: before that the server knows
    nothing of it, and one that is rolled back costs nothing. The server then holds it once more until EXEC. A scan
    reads pages, each as of its own moment.

    Durable when `commit` returns. A server that would lose commits is refused, or, with `durability=none` in the
    address, warned of; `durability` tells. If a reply is lost, `commit` connects again, trying for `settle_seconds`,
    and finds out what became of the commit.
    """

    is_persistent = True

    def __init__(self, url: str, *, limit: int = LIMIT, settle_seconds: float = SETTLE_SECONDS) -> None:
        self._server = Server(parse(url))
        self.address = self._server.address
        reader = Reader(self._server)
        self.read = reader.read
        self.scan = reader.scan
        self._limit = limit
        self._pending = Pending()
        self._failed: HoldfastError | None = None
        try:
            with self._server.translated("opening the index"):
                self._committer = Committer(self._server, settle_seconds)
        except BaseException:
            self._server.close()
            raise

    @property
    def durability(self) -> str:
        """What the server keeps of what it acknowledges: a sentence about it, without the full stop."""
        return self._server.keeping.words if self._server.keeping else ""

    def write(self, changes: Changes) -> None:
        if self._failed:
            raise self._failed
        self._pending.add(changes)
        if self._pending.size > self._limit:
            self._pending = Pending()
            self._failed = too_large(self._limit, self.address)
            raise self._failed

    def commit(self) -> None:
        pending, failed = self._pending, self._failed
        self.rollback()
        if failed:
            raise failed
        if pending:
            with self._server.translated("committing"):
                self._committer.commit(pending)

    def rollback(self) -> None:
        self._pending = Pending()
        self._failed = None

    def close(self) -> None:
        self.rollback()
        self._server.close()
