"""A Redis, Valkey or Garnet server: its address, and whether its acknowledged commits are durable.

Only `appendfsync always` counts as durable. WAITAOF should make `everysec` durable as well, but since Redis 7.4, and in
Valkey 9.1, it may answer before the sync: https://github.com/redis/redis/pull/13793.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import redis
from redis.connection import parse_url

from holdfast.errors import HoldfastError, Invalid
from holdfast.storage.kv import errors
from holdfast.storage.kv.store import Kind

if TYPE_CHECKING:
    from holdfast.storage.kv.redis_connection import RedisConnection

_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
_NAME = re.compile(r"[^\s{}\x00-\x1f\x7f]{1,200}")
_KEY_PREFIXES: dict[Kind, str] = {"index": "holdfast", "store": "holdfast-store"}
_DEFAULTS: dict[str, Any] = {
    "socket_connect_timeout": 10.0,
    "socket_timeout": 60.0,
    "socket_keepalive": True,
    # Replies have the same shapes on every server and in every version of the client.
    "protocol": 2,
}

SYNC_TIMEOUT_MS = 30_000
_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")
_ON_FAILOVER = "a replica that takes over may lack the newest commits"

Durability = Literal["strict", "server", "none"]
"""`strict`: the server must show that it keeps commits. `server`: trust it if it does not tell. `none`: only warn."""
_DURABILITIES: dict[str, Durability] = {"strict": "strict", "server": "server", "none": "none"}


class RedisAddress(msgspec.Struct, frozen=True):
    """A parsed address. `settings` may hold a password; `shown` does not."""

    shown: str
    kind: Kind
    name: str
    """The name of the store: a server may have many."""
    durability: Durability
    connection: type[redis.Connection]
    settings: dict[str, Any]

    def key(self, name: str) -> str:
        """A key of this store. The part in braces puts all of them on one node of a cluster."""
        return f"{{{_KEY_PREFIXES[self.kind]}:{self.name}}}:{name}"


def parse(url: str, kind: Kind = "index") -> RedisAddress:
    """`redis://user:password@host:port/db?index=name&durability=none`, or `rediss`, `valkey`, `valkeys`.

    A store of events has `store=name` instead of `index=name`. Other parameters, such as `socket_timeout` and
    `ssl_ca_certs`, are passed to redis-py.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        raise _invalid("The address cannot be read; it is not shown, because it may hold a password.") from None
    database = parts.path.strip("/") or "0"
    if parts.scheme not in _SCHEMES or not database.isdecimal():
        raise _invalid("The address does not name a Redis server and the number of a database.")
    query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
    name, durability = _last(query, kind, "default"), _last(query, "durability", "strict")
    shown = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}/{database}?{kind}={name}"
    if not _NAME.fullmatch(name):
        raise _invalid(f"{name[:50]!r} is not a name for {errors.a(kind)}: 1 to 200 characters, no spaces, no braces.")
    if durability not in _DURABILITIES:
        raise _invalid(f"durability is strict, server or none, not {durability[:50]!r}.")
    rest = urllib.parse.urlencode(query, doseq=True)
    try:
        settings = _DEFAULTS | _parsed(urllib.parse.urlunsplit((_SCHEMES[parts.scheme], *parts[1:3], rest, "")))
        settings["db"] = int(database)
        connection = settings.pop("connection_class", redis.Connection)
        connection(**settings)
    except (ValueError, TypeError, redis.RedisError) as error:
        raise _invalid(f"redis-py refuses a parameter of the address: {_parameter(error, query)}.") from None
    return RedisAddress(shown, kind, name, _DURABILITIES[durability], connection, settings)


def _parsed(url: str) -> dict[str, Any]:
    found: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    return found


def _last(query: dict[str, list[str]], name: str, default: str) -> str:
    return query.pop(name, [default])[-1]


def _parameter(error: Exception, query: dict[str, list[str]]) -> str:
    """The name of the refused parameter, without the error's text, which may quote its value."""
    return next((name for name in query if name in str(error)), "one of " + ", ".join(query))


def _invalid(why: str) -> Invalid:
    return Invalid(
        why,
        code="address.refused",
        next_step="write redis://user:password@host:6379/0?index=name, special characters percent-encoded",
    )


class Keeping(msgspec.Struct, frozen=True):
    """Whether acknowledged commits survive a crash of the server, and why, in words."""

    kept: bool
    words: str
    has_waitaof: bool = False
    """Whether the server knows WAITAOF. It is then sent with every commit, to notice changed settings."""


def find_out(connection: RedisConnection, wanted: Durability) -> Keeping:
    *settings, memory, waitaof = connection.ask(
        *(["CONFIG", "GET", name] for name in _SETTINGS), ["INFO", "memory"], ["WAITAOF", 1, 0, 1]
    )
    found = dict(zip(_SETTINGS, map(_value, settings), strict=True))
    return judge(found, may_evict(memory), waitaof, wanted)


def judge(settings: dict[str, str | None], evicts: bool, waitaof: Any, wanted: Durability) -> Keeping:
    """Decide from the server's answers; a setting is None if the server does not tell it.

    With `durability=server`, trust the server wherever it does not answer.
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
    """Whether keys without an expiry may be evicted, from INFO memory; False if INFO is not allowed."""
    if not isinstance(memory, bytes):
        return False
    found = dict(line.split(b":", 1) for line in memory.splitlines() if b":" in line)
    return found.get(b"maxmemory", b"0") != b"0" and found.get(b"maxmemory_policy", b"").startswith(b"allkeys")


def _value(reply: Any) -> str | None:
    """The value in a reply to CONFIG GET; None if the reply is an error or empty."""
    return None if isinstance(reply, redis.ResponseError) or len(reply) != 2 else reply[1].decode()


def not_kept(words: str, kind: Kind, address: str) -> HoldfastError:
    return Invalid(
        f"The server would lose commits that it has acknowledged: {words}.",
        code=f"{kind}.not-durable",
        about=address,
        unchanged=f"the {kind}, and the process that has it open",
        next_step="set appendonly yes, appendfsync always and maxmemory-policy noeviction on the server; or add "
        "durability=server to the address if you know that it keeps everything and only does not say so; or "
        "durability=none if the results may be lost and computed again",
    )
