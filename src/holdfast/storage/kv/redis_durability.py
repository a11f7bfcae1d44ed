"""What a server keeps of what it acknowledges.

Only `appendfsync always` is taken for durable. WAITAOF should make `everysec` so, too, but from Redis 7.4 on, in Valkey
9.1 as well, it may answer before the sync: https://github.com/redis/redis/pull/13793.
"""

from __future__ import annotations

from typing import Any

import msgspec
import redis

from holdfast.errors import HoldfastError, Invalid
from holdfast.storage.kv.redis_connection import Line
from holdfast.storage.kv.redis_server import Durability

SYNC_TIMEOUT_MS = 30_000
_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")
_ON_FAILOVER = "a replica that takes over may lack the newest commits"


class Keeping(msgspec.Struct, frozen=True):
    """Whether acknowledged commits survive the server's own end, and why, in words."""

    kept: bool
    words: str
    has_waitaof: bool = False
    """Where the server knows WAITAOF it is asked on every commit: it notices when the settings change."""


def find_out(line: Line, wanted: Durability) -> Keeping:
    *settings, memory, waitaof = line.ask(
        *(["CONFIG", "GET", name] for name in _SETTINGS), ["INFO", "memory"], ["WAITAOF", 1, 0, 1]
    )
    found = dict(zip(_SETTINGS, map(_value, settings), strict=True))
    return judge(found, may_evict(memory), waitaof, wanted)


def judge(settings: dict[str, str | None], evicts: bool, waitaof: Any, wanted: Durability) -> Keeping:
    """Decide from what the server says; a setting is None where it does not say.

    With `server` wanted, everything is believed that cannot be found out.
    """
    appendonly, appendfsync, relaxed = (settings[name] for name in _SETTINGS)
    has_waitaof = isinstance(waitaof, list)
    if evicts:
        return Keeping(False, "it removes keys when its memory is full (maxmemory-policy)")
    if appendonly == "no" or "appendonly is disabled" in str(waitaof):
        return Keeping(False, "it writes no append-only file (appendonly no)")
    if appendfsync == "no":
        return Keeping(False, "it does not sync its append-only file (appendfsync no)")
    if relaxed == "yes":
        return Keeping(False, "it does not sync while it saves or rewrites its data (no-appendfsync-on-rewrite yes)")
    if appendonly == "yes" and appendfsync == "always":
        return Keeping(True, f"it syncs its append-only file before it answers; {_ON_FAILOVER}", has_waitaof)
    if wanted == "server":
        said = "the address says so (durability=server), and nothing contradicts it"
        return Keeping(True, f"{said}; {_ON_FAILOVER}", has_waitaof)
    if appendfsync == "everysec":
        return Keeping(False, "it syncs its append-only file once a second (appendfsync everysec)")
    return Keeping(False, "it does not say whether it has appendonly yes and appendfsync always")


def may_evict(memory: Any) -> bool:
    """From INFO memory, where that is allowed: whether keys without an expiry may be evicted."""
    if not isinstance(memory, bytes):
        return False
    found = dict(line.split(b":", 1) for line in memory.splitlines() if b":" in line)
    return found.get(b"maxmemory", b"0") != b"0" and found.get(b"maxmemory_policy", b"").startswith(b"allkeys")


def _value(reply: Any) -> str | None:
    """Of a reply to CONFIG GET, which may be an error or empty."""
    return None if isinstance(reply, redis.ResponseError) or len(reply) != 2 else reply[1].decode()


def not_kept(words: str, address: str) -> HoldfastError:
    return Invalid(
        f"The server would lose commits that it has acknowledged: {words}.",
        code="index.not-durable",
        about=address,
        unchanged="the index, and whoever has it open",
        next_step="set appendonly yes, appendfsync always and maxmemory-policy noeviction on the server; or add "
        "durability=server to the address if you know that it keeps everything and it only does not say so; or "
        "durability=none if the results may be lost and computed again",
    )
