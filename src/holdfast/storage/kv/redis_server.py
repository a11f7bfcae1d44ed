"""Addresses of indexes on Redis, Valkey and Garnet: where, which index, and what may be lost."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any, Literal

import msgspec
import redis
from redis.connection import parse_url

from holdfast.errors import Invalid

_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
_NAME = re.compile(r"[^\s{}\x00-\x1f\x7f]{1,200}")
_DEFAULTS: dict[str, Any] = {
    "socket_connect_timeout": 10.0,
    "socket_timeout": 60.0,
    "socket_keepalive": True,
    # Replies have the same shapes on every server and in every version of the client.
    "protocol": 2,
}

Durability = Literal["strict", "server", "none"]
"""Commits must be kept, as far as can be found out; as the server's owner vouches for; or need not be."""
_DURABILITIES: dict[str, Durability] = {"strict": "strict", "server": "server", "none": "none"}


class RedisAddress(msgspec.Struct, frozen=True):
    """An address, taken apart. `settings` may hold a password; `shown` does not."""

    shown: str
    index: str
    durability: Durability
    connection: type[redis.Connection]
    settings: dict[str, Any]

    def key(self, name: str) -> str:
        """A key of this index. The part in braces puts all of them on one node of a cluster."""
        return f"{{holdfast:{self.index}}}:{name}"


def parse(url: str) -> RedisAddress:
    """`redis://user:password@host:port/db?index=name&durability=none`, or `rediss`, `valkey`, `valkeys`.

    Other parameters go to redis-py as they are, such as `socket_timeout` and `ssl_ca_certs`.
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
    index, durability = _last(query, "index", "default"), _last(query, "durability", "strict")
    shown = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}/{database}?index={index}"
    if not _NAME.fullmatch(index):
        raise _invalid(f"{index[:50]!r} is not a name for an index: 1 to 200 characters, no spaces, no braces.")
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
    return RedisAddress(shown, index, _DURABILITIES[durability], connection, settings)


def _parsed(url: str) -> dict[str, Any]:
    found: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    return found


def _last(query: dict[str, list[str]], name: str, default: str) -> str:
    return query.pop(name, [default])[-1]


def _parameter(error: Exception, query: dict[str, list[str]]) -> str:
    """Which one: the error's own text may quote its value."""
    return next((name for name in query if name in str(error)), "one of " + ", ".join(query))


def _invalid(why: str) -> Invalid:
    return Invalid(
        why,
        code="address.refused",
        next_step="write redis://user:password@host:6379/0?index=name, special characters percent-encoded",
    )
