"""An index on Redis, Valkey or Garnet: for each space a hash of its values, and a sorted set of its keys, for order."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.errors import Corrupt, HoldfastError
from holdfast.sources.backend import Change, Space
from holdfast.sources.pending import LIMIT, Pending, too_large
from holdfast.sources.prefixes import end_of
from holdfast.sources.redis_address import parse
from holdfast.sources.redis_commit import Committer
from holdfast.sources.redis_line import Command
from holdfast.sources.redis_server import Server

PAGE = 500
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
        self._layout = self._server.layout
        self._limit = limit
        self._lock = threading.RLock()
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

    def read(self, space: Space, key: bytes) -> bytes | None:
        found: bytes | None = self._ask(["HGET", self._layout.values[space], key])[0]
        return found

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        order, values = self._layout.order[space], self._layout.values[space]
        end = end_of(prefix)
        start, stop = b"[" + prefix, b"+" if end is None else b"(" + end
        while keys := self._ask(["ZRANGEBYLEX", order, start, stop, "LIMIT", 0, PAGE])[0]:
            for key, value in zip(keys, self._ask(["HMGET", values, *keys])[0], strict=True):
                if value is None:
                    self._check_removed(space, key)
                else:
                    yield key, value
            if len(keys) < PAGE:
                return
            start = b"(" + keys[-1]

    def write(self, changes: Sequence[Change]) -> None:
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
            with self._lock, self._server.translated("committing"):
                self._committer.commit(pending)

    def rollback(self) -> None:
        self._pending = Pending()
        self._failed = None

    def close(self) -> None:
        self.rollback()
        with self._lock:
            self._server.close()

    def _ask(self, *commands: Command) -> list[Any]:
        with self._lock:
            return self._server.ask(*commands)

    def _check_removed(self, space: Space, key: bytes) -> None:
        """A key without a value was removed by a commit since it was listed; else the two are at odds."""
        both = (["ZSCORE", self._layout.order[space], key], ["HEXISTS", self._layout.values[space], key])
        score, is_there = self._ask(["MULTI"], *both, ["EXEC"])[-1]
        if score is not None and not is_there:
            raise Corrupt(
                f"The key {key[:50]!r} is listed and has no value.",
                code="index.damaged",
                about=self.address,
                unchanged="the index",
                next_step="reset the index, or restore the server's data",
            )
