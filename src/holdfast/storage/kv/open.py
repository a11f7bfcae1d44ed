"""From an address to a key-value store."""

from __future__ import annotations

import importlib
from typing import Any, Literal, NamedTuple, overload

from holdfast.base.addresses import CLOUD_SCHEMES, kv_path, without_secrets
from holdfast.errors import Invalid
from holdfast.storage.kv.errors import a
from holdfast.storage.kv.store import KeyValueStore, Kind, Mode, Reader, Schema


class _Backend(NamedTuple):
    module: str
    store: str
    reader_module: str
    reader: str
    is_path: bool = False
    extra: str | None = None
    """The extra of the distribution that brings its client library."""


_SQLITE = _Backend("sqlite", "SqliteStore", "sqlite_reader", "SqliteReader", is_path=True)
_ROCKSDB = _Backend("rocksdb", "RocksdbStore", "rocksdb", "RocksdbReader", is_path=True, extra="rocksdb")
_REDIS = _Backend("redis", "RedisStore", "redis", "RedisReader", extra="redis")
_POSTGRES = _Backend("postgres", "PostgresStore", "postgres_reader", "PostgresReader", extra="postgres")
_SLATEDB = _Backend("slatedb", "SlatedbStore", "slatedb", "SlatedbReader", extra="slatedb")
_BACKENDS = {
    "sqlite": _SQLITE,
    "rocksdb": _ROCKSDB,
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "file": _SLATEDB,
    **dict.fromkeys(CLOUD_SCHEMES, _SLATEDB),
}


@overload
def open_kv(url: str, schema: Schema, mode: Literal["read"]) -> Reader: ...


@overload
def open_kv(url: str, schema: Schema, mode: Literal["exclusive", "shared"]) -> KeyValueStore: ...


@overload
def open_kv(url: str, schema: Schema, mode: Mode) -> Reader: ...


def open_kv(url: Any, schema: Schema, mode: Mode) -> Reader:
    """Open the store at an address. For writing it is made if it is not there, to read it is `NotFound` then.

    With `shared` several processes may write where the backend can share; the others refuse a second writer or fence
    the first. With `exclusive` there is one writer everywhere.
    """
    kind = schema.kind
    if not isinstance(url, str) or "://" not in url or "\0" in url:
        raise Invalid(
            f"{url!r} is not the address of {a(kind)}.",
            code="address.refused",
            about=repr(url),
            unchanged="everything",
            next_step="write sqlite:///path, rocksdb:///path, redis://host, postgresql://host/database, "
            "s3://bucket/path or memory://",
        )
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "memory":
        memory = importlib.import_module("holdfast.storage.kv.memory")
        name = rest.strip("/")
        found: Reader = memory.MemoryReader(name, schema) if mode == "read" else memory.MemoryStore(name, schema, mode)
        return found
    backend = _BACKENDS.get(scheme)
    if backend is None:
        raise Invalid(
            f"{scheme}:// is not a kind of {kind} that Holdfast knows.",
            code="address.scheme",
            about=without_secrets(url),
            unchanged="everything",
            next_step="use sqlite://, rocksdb://, redis://, rediss://, valkey://, postgresql://, s3://, gs://, az://, "
            "file:// or memory://",
        )
    place = kv_path(url) if backend.is_path else f"{scheme}://{rest}"
    if mode == "read":
        opened: Reader = _load(backend, scheme, backend.reader_module, backend.reader, kind)(place, schema)
    else:
        opened = _load(backend, scheme, backend.module, backend.store, kind)(place, schema, mode)
    return opened


def _load(backend: _Backend, scheme: str, module_name: str, name: str, kind: Kind) -> Any:
    try:
        module = importlib.import_module(f"holdfast.storage.kv.{module_name}")
    except ModuleNotFoundError as error:
        if backend.extra is None:
            raise
        raise Invalid(
            f"{a(kind).capitalize()} at {scheme}:// needs the package {error.name}.",
            code=f"{kind}.package",
            about=str(error.name),
            unchanged="everything",
            next_step=f"pip install 'holdfast[{backend.extra}]'",
        ) from error
    return getattr(module, name)
