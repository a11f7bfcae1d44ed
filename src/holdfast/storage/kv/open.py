"""Opens the key-value store at an address."""

from __future__ import annotations

import importlib
import os
from typing import Any, Literal, NamedTuple, overload

from holdfast.base.addresses import CLOUD_SCHEMES, kv_absolute, kv_path, without_secrets
from holdfast.errors import Invalid
from holdfast.storage.kv.errors import a
from holdfast.storage.kv.store import KeyValueStore, Kind, Mode, Reader, Schema
from holdfast.storage.kv.transaction import MAX_ROCKSDB_TRANSACTION, MAX_TRANSACTION


class _Backend(NamedTuple):
    module: str
    store: str
    reader_module: str
    reader: str
    is_path: bool = False
    extra: str | None = None
    """The extra of the holdfast package that installs its client library."""
    max_transaction: int | None = None
    """The `max_transaction` of its stores."""


_SQLITE = _Backend("sqlite", "SqliteStore", "sqlite_reader", "SqliteReader", is_path=True)
_ROCKSDB = _Backend(
    "rocksdb",
    "RocksdbStore",
    "rocksdb",
    "RocksdbReader",
    is_path=True,
    extra="rocksdb",
    max_transaction=MAX_ROCKSDB_TRANSACTION,
)
_REDIS = _Backend("redis", "RedisStore", "redis", "RedisReader", extra="redis", max_transaction=MAX_TRANSACTION)
_POSTGRES = _Backend("postgres", "PostgresStore", "postgres_reader", "PostgresReader", extra="postgres")
_SLATEDB = _Backend(
    "slatedb", "SlatedbStore", "slatedb", "SlatedbReader", extra="slatedb", max_transaction=MAX_TRANSACTION
)
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
def open_kv(url: str | os.PathLike[str], schema: Schema, mode: Literal["read"]) -> Reader: ...


@overload
def open_kv(url: str | os.PathLike[str], schema: Schema, mode: Literal["exclusive", "shared"]) -> KeyValueStore: ...


@overload
def open_kv(url: str | os.PathLike[str], schema: Schema, mode: Mode) -> Reader: ...


def open_kv(url: Any, schema: Schema, mode: Mode) -> Reader:
    """Open the store at an address or a plain path, that of a SQLite file.

    If there is none, it is created for writing; for reading `NotFound` is raised.

    With `shared` several processes may write if the backend supports it; other backends refuse a second writer or fence
    the first. With `exclusive` every backend allows one writer.
    """
    kind = schema.kind
    if isinstance(url, os.PathLike):
        url = os.fspath(url)
    if not isinstance(url, str) or not url or "\0" in url:
        raise Invalid(
            f"{url!r} is not the address of {a(kind)}.",
            code="address.refused",
            about=repr(url),
            unchanged="everything",
            next_step="write a path, sqlite:///path, rocksdb:///path, redis://host, postgresql://host/database, "
            "s3://bucket/path or memory://",
        )
    url = kv_absolute(url)
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


def max_transaction_of(url: str) -> int | None:
    """The `max_transaction` of the store at an address, without opening it."""
    backend = _BACKENDS.get(url.partition("://")[0].lower())
    return None if backend is None else backend.max_transaction


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
