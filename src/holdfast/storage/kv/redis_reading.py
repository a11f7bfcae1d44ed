"""Reading an index on Redis: one value, or pages of keys with their values."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import Corrupt
from holdfast.storage.kv.backend import Space
from holdfast.storage.kv.prefixes import end_of
from holdfast.storage.kv.redis_client import Server

PAGE = 500


class Reader:
    """Values as they are committed; a scan reads pages, each as of its own moment."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._layout = server.layout

    def read(self, space: Space, key: bytes) -> bytes | None:
        found: bytes | None = self._server.ask(["HGET", self._layout.values[space], key])[0]
        return found

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        order, values = self._layout.order[space], self._layout.values[space]
        end = end_of(prefix)
        start, stop = b"[" + prefix, b"+" if end is None else b"(" + end
        while keys := self._server.ask(["ZRANGEBYLEX", order, start, stop, "LIMIT", 0, PAGE])[0]:
            for key, value in zip(keys, self._server.ask(["HMGET", values, *keys])[0], strict=True):
                if value is None:
                    self._check_removed(space, key)
                else:
                    yield key, value
            if len(keys) < PAGE:
                return
            start = b"(" + keys[-1]

    def _check_removed(self, space: Space, key: bytes) -> None:
        """A key without a value was removed by a commit since it was listed; else the two are at odds."""
        both = (["ZSCORE", self._layout.order[space], key], ["HEXISTS", self._layout.values[space], key])
        score, is_there = self._server.ask(["MULTI"], *both, ["EXEC"])[-1]
        if score is not None and not is_there:
            raise Corrupt(
                f"The key {key[:50]!r} is listed and has no value.",
                code="index.damaged",
                about=self._server.address,
                unchanged="the index",
                next_step="reset the index, or restore the server's data",
            )
