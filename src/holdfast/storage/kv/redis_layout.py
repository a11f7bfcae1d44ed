"""The keys of an index on Redis, and the commands that change them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from holdfast.errors import Corrupt, HoldfastError
from holdfast.storage.kv.backend import Space
from holdfast.storage.kv.pending import Pending
from holdfast.storage.kv.redis_connection import Command
from holdfast.storage.kv.redis_server import RedisAddress
from holdfast.storage.kv.token import NOTHING_APPLIED

_FIELDS = 2_000
_BYTES = 1 << 20
_SPACES: tuple[Space, ...] = ("meta", "results")


class Layout:
    """`:meta` and `:results` are hashes of values, with `:order` appended sorted sets of their keys, all scored 0, so
    that they are in the order of their bytes; `:token` and `:earlier` as in `tokens`.
    """

    def __init__(self, address: RedisAddress) -> None:
        self.pattern = address.key("*")
        self.token = address.key("token")
        self.earlier = address.key("earlier")
        self.values = {space: address.key(space) for space in _SPACES}
        self.order = {space: address.key(f"{space}:order") for space in _SPACES}
        self._types = {self.token: b"string", self.earlier: b"list"}
        self._types |= dict.fromkeys(self.values.values(), b"hash") | dict.fromkeys(self.order.values(), b"zset")
        self.all = list(self._types)

    def types(self) -> list[Command]:
        return [["TYPE", key] for key in self.all]

    def check(self, types: list[bytes], address: str) -> None:
        """Refuse keys of a wrong type beforehand: within EXEC, only the command that meets one would fail."""
        for found, expected in zip(types, self._types.values(), strict=True):
            if found not in (expected, b"none"):
                raise self.wrong_type(address)

    def wrong_type(self, address: str) -> HoldfastError:
        return Corrupt(
            "A key of the index holds something of another type.",
            code="index.damaged",
            about=address,
            unchanged=NOTHING_APPLIED,
            next_step=f"find out what else writes to {self.pattern}; restore the server's data, or remove these keys "
            "and start over",
        )

    def commands(self, pending: Pending) -> Iterator[Command]:
        """What applies these changes, in commands of about a megabyte."""
        for space in _SPACES:
            values, order = self.values[space], self.order[space]
            puts: list[tuple[bytes, bytes]] = []
            size = 0
            for key, value in pending.changes[space].items():
                if value is not None:
                    puts.append((key, value))
                    size += len(key) + len(value)
                    if size > _BYTES or len(puts) == _FIELDS:
                        yield from _put(values, order, puts)
                        puts, size = [], 0
            if puts:
                yield from _put(values, order, puts)
            gone = [key for key, value in pending.changes[space].items() if value is None]
            for start in range(0, len(gone), _FIELDS):
                yield ["HDEL", values, *gone[start : start + _FIELDS]]
                yield ["ZREM", order, *gone[start : start + _FIELDS]]


def _put(values: str, order: str, puts: list[tuple[bytes, bytes]]) -> Iterator[Command]:
    yield ["HSET", values, *chain.from_iterable(puts)]
    yield ["ZADD", order, *chain.from_iterable((b"0", key) for key, _ in puts)]
