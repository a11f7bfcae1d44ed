"""From an address to an index."""

from __future__ import annotations

import importlib
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.base.addresses import without_secrets
from holdfast.errors import Invalid
from holdfast.index.backend import Backend
from holdfast.index.index import Index
from holdfast.index.looking import LookedAt, not_there
from holdfast.index.memory import MemoryBackend


class _Kind(NamedTuple):
    module: str
    """Has the backend; the one with `_looking` after it has the looker."""
    prefix: str
    """Of both classes' names."""
    is_path: bool
    extra: str | None = None


_SQLITE = _Kind("sqlite", "Sqlite", True)
_ROCKSDB = _Kind("rocksdb", "Rocksdb", True, "rocksdb")
_REDIS = _Kind("redis", "Redis", False, "redis")
_POSTGRES = _Kind("postgres", "Postgres", False, "postgres")
_KINDS = {
    "sqlite": _SQLITE,
    "rocksdb": _ROCKSDB,
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
}


def open_index(url: str, *, read_only: bool = False, clock: Callable[[], float] = time.time) -> Index:
    """Open the index at an address; it is made if it is not there.

    `sqlite:///path` and `rocksdb:///path` are on this machine; `redis://` (Redis, Valkey, Garnet) and `postgresql://`
    on a server; `memory://` is new each time and gone at the end, `memory://name` as well, and cannot be opened twice.
    An index that somebody else has open is refused with `Conflict`, or taken over so that the other's next commit is
    `Fenced`, never shared. With `read_only` nobody is disturbed, nothing can be written, and an index that is not there
    is `NotFound`. `clock` gives the time of day, for tests.
    """
    return Index(open_backend(url, read_only=read_only), read_only=read_only, clock=clock)


def open_backend(url: Any, *, read_only: bool = False) -> Backend:
    """The map of bytes behind an index."""
    if not isinstance(url, str) or "://" not in url or "\0" in url:
        raise Invalid(
            f"{url!r} is not the address of an index.",
            code="address.refused",
            about=repr(url),
            next_step="write sqlite:///path, rocksdb:///path, redis://host, postgresql://host/database or memory://",
        )
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "memory":
        if read_only:
            raise not_there(url)
        return MemoryBackend(rest.strip("/"))
    kind = _KINDS.get(scheme)
    if kind is None:
        raise Invalid(
            f"{scheme}:// is not a kind of index that Holdfast knows.",
            code="address.scheme",
            about=without_secrets(url),
            next_step="use sqlite://, rocksdb://, redis://, rediss://, valkey://, postgresql:// or memory://",
        )
    argument = _path(scheme, rest) if kind.is_path else f"{scheme}://{rest}"
    if read_only:
        return LookedAt(_load(kind, scheme, f"{kind.module}_looking", f"{kind.prefix}Looker")(argument))
    backend: Backend = _load(kind, scheme, kind.module, f"{kind.prefix}Backend")(argument)
    return backend


def _load(kind: _Kind, scheme: str, module_name: str, name: str) -> Any:
    try:
        module = importlib.import_module(f"holdfast.index.{module_name}")
    except ModuleNotFoundError as error:
        if kind.extra is None:
            raise
        raise Invalid(
            f"An index at {scheme}:// needs the package {error.name}.",
            code="index.package",
            about=str(error.name),
            unchanged="everything",
            next_step=f"pip install 'holdfast[{kind.extra}]'",
        ) from error
    return getattr(module, name)


def _path(scheme: str, rest: str) -> str:
    """An absolute path; `sqlite:////path`, as others write it, is the same."""
    if not rest.startswith("/") or "?" in rest or "#" in rest or not rest.strip("/"):
        raise Invalid(
            f"{scheme}://{rest} is not an absolute path.",
            code="address.refused",
            about=f"{scheme}://{rest}",
            unchanged="everything",
            next_step=f"write {scheme}:///directory/file, without options; %3F and %23 stand for ? and # in a name",
        )
    path = urllib.parse.unquote("/" + rest.lstrip("/"))
    if "\0" in path:
        raise Invalid(f"{scheme}://{rest} holds a NUL character.", code="address.refused", about=f"{scheme}://{rest}")
    return path
