"""The keys of a store on Redis, the commands that change them, and reads of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from holdfast.errors import Corrupt, HoldfastError
from holdfast.storage.kv.errors import nothing_applied
from holdfast.storage.kv.redis_server import RedisAddress
from holdfast.storage.kv.store import Row, Schema, WriteBatch

if TYPE_CHECKING:
    from holdfast.storage.kv.redis_connection import RedisClient

Command = list[Any]
PAGE = 500
_FIELDS = 2_000
_BYTES = 1 << 20


class RedisLayout:
    """The keys of one store.

    Each keyspace has a hash of its values, such as `:results`, and a sorted set of its keys, `:results:order`, all with
    score 0, so that they are in byte order. `:token` is the writer's token, `:earlier` the list of earlier tokens.
    """

    def __init__(self, address: RedisAddress, schema: Schema) -> None:
        self._kind = schema.kind
        self.pattern = address.key("*")
        self.token = address.key("token")
        self.earlier = address.key("earlier")
        self.values = {space: address.key(space) for space in schema.names}
        self.order = {space: address.key(f"{space}:order") for space in schema.names}
        self._types = {self.token: b"string", self.earlier: b"list"}
        self._types |= dict.fromkeys(self.values.values(), b"hash") | dict.fromkeys(self.order.values(), b"zset")
        self.all = list(self._types)

    def types(self) -> list[Command]:
        return [["TYPE", key] for key in self.all]

    def check(self, types: list[bytes], address: str) -> None:
        """`Corrupt` if a key has the wrong type. Within EXEC, only the command on that key would fail."""
        for found, expected in zip(types, self._types.values(), strict=True):
            if found not in (expected, b"none"):
                raise self.wrong_type(address)

    def wrong_type(self, address: str) -> HoldfastError:
        return Corrupt(
            f"A key of the {self._kind} holds a value of the wrong type.",
            code=f"{self._kind}.damaged",
            about=address,
            unchanged=nothing_applied(self._kind),
            next_step=f"find out what else writes to {self.pattern}; restore the server's data, or remove these keys "
            "and start over",
        )

    def commands(self, batch: WriteBatch) -> Iterator[Command]:
        """The commands that apply these changes, each of about a megabyte."""
        for space, changes in batch.items():
            values, order = self.values[space], self.order[space]
            puts: list[tuple[bytes, bytes]] = []
            size = 0
            for key, value in changes.items():
                if value is not None:
                    puts.append((key, value))
                    size += len(key) + len(value)
                    if size > _BYTES or len(puts) == _FIELDS:
                        yield from _put(values, order, puts)
                        puts, size = [], 0
            if puts:
                yield from _put(values, order, puts)
            gone = [key for key, value in changes.items() if value is None]
            for start in range(0, len(gone), _FIELDS):
                yield ["HDEL", values, *gone[start : start + _FIELDS]]
                yield ["ZREM", order, *gone[start : start + _FIELDS]]


def _put(values: str, order: str, puts: list[tuple[bytes, bytes]]) -> Iterator[Command]:
    yield ["HSET", values, *chain.from_iterable(puts)]
    yield ["ZADD", order, *chain.from_iterable((b"0", key) for key, _ in puts)]


class RedisReads:
    """Reads committed values. A scan reads pages, each page as of its own moment."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._layout = client.layout

    def get(self, space: str, key: bytes) -> bytes | None:
        found: bytes | None = self._client.ask(["HGET", self._layout.values[space], key])[0]
        return found

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._client.ask(["HMGET", self._layout.values[space], *keys])[0] if keys else []
        return found

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        self._client.check_open()
        return self._pages(space, start, end, limit)

    def _pages(self, space: str, start: bytes, end: bytes | None, limit: int | None) -> Iterator[Row]:
        order, values = self._layout.order[space], self._layout.values[space]
        first, stop, left = b"[" + start, b"+" if end is None else b"(" + end, limit
        while left != 0:
            most = PAGE if left is None else min(PAGE, left)
            keys = self._client.ask(["ZRANGEBYLEX", order, first, stop, "LIMIT", 0, most])[0]
            if not keys:
                return
            for key, value in zip(keys, self._client.ask(["HMGET", values, *keys])[0], strict=True):
                if value is None:
                    self._check_removed(space, key)
                else:
                    left = None if left is None else left - 1
                    yield key, value
            if len(keys) < most:
                return
            first = b"(" + keys[-1]

    def _check_removed(self, space: str, key: bytes) -> None:
        """`Corrupt` if a key is listed without a value, unless a commit has removed it since it was listed."""
        both = (["ZSCORE", self._layout.order[space], key], ["HEXISTS", self._layout.values[space], key])
        score, is_there = self._client.ask(["MULTI"], *both, ["EXEC"])[-1]
        if score is not None and not is_there:
            raise Corrupt(
                f"The key {key[:50]!r} is listed but has no value.",
                code=f"{self._client.kind}.damaged",
                about=self._client.address,
                unchanged=f"the {self._client.kind}",
                next_step=f"reset the {self._client.kind}, or restore the server's data",
            )
