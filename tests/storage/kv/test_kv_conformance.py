"""The conformance suite of the key-value layer, on every backend, with the keyspaces of both models."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from holdfast.storage.kv.memory import MemoryReader, MemoryStore
from holdfast.storage.kv.postgres import PostgresStore
from holdfast.storage.kv.postgres_reader import PostgresReader
from holdfast.storage.kv.redis import RedisReader, RedisStore
from holdfast.storage.kv.rocksdb import RocksdbReader, RocksdbStore
from holdfast.storage.kv.slatedb import SlatedbReader, SlatedbStore
from holdfast.storage.kv.sqlite import SqliteStore
from holdfast.storage.kv.sqlite_reader import SqliteReader
from holdfast.storage.kv.store import KeyValueStore, Kind, Reader, Schema
from holdfast.testing.conformance.kv import KeyValueAbilities, KeyValueConformance
from servers.valkey import ValkeyServer


@pytest.fixture(params=["index", "store"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class OnEachKind(KeyValueConformance):
    @pytest.fixture(autouse=True)
    def place(self, kind: Kind, tmp_path: Path) -> None:
        self.kind = kind
        self.path = tmp_path / "new" / uuid.uuid4().hex


class TestMemory(OnEachKind):
    abilities = KeyValueAbilities(persistent=False, writers="exclusive")

    def open_store(self, schema: Schema) -> KeyValueStore:
        return MemoryStore(self.path.name, schema)

    def open_reader(self, schema: Schema) -> Reader:
        return MemoryReader(self.path.name, schema)


class TestSharedMemory(TestMemory):
    abilities = KeyValueAbilities(persistent=False, writers="shared")

    def open_store(self, schema: Schema) -> KeyValueStore:
        return MemoryStore(self.path.name, schema, "shared")


class TestSqlite(OnEachKind):
    abilities = KeyValueAbilities(persistent=True, writers="exclusive", sql=True)

    def open_store(self, schema: Schema) -> KeyValueStore:
        return SqliteStore(str(self.path), schema)

    def open_reader(self, schema: Schema) -> Reader:
        return SqliteReader(str(self.path), schema)


class TestSharedSqlite(TestSqlite):
    abilities = KeyValueAbilities(persistent=True, writers="shared", sql=True)

    def open_store(self, schema: Schema) -> KeyValueStore:
        return SqliteStore(str(self.path), schema, "shared")


class TestRocksdb(OnEachKind):
    abilities = KeyValueAbilities(persistent=True, writers="exclusive", max_transaction=32 << 20, reads_one_moment=True)

    def open_store(self, schema: Schema) -> KeyValueStore:
        return RocksdbStore(str(self.path), schema, limit=32 << 20)

    def open_reader(self, schema: Schema) -> Reader:
        return RocksdbReader(str(self.path), schema)


class TestRedis(OnEachKind):
    abilities = KeyValueAbilities(persistent=True, writers="fencing", max_transaction=32 << 20, scans_one_moment=False)

    @pytest.fixture(autouse=True)
    def server(self, valkey: ValkeyServer, kind: Kind) -> None:
        self.url = valkey.url(uuid.uuid4().hex).replace("index=", f"{kind}=")

    def open_store(self, schema: Schema) -> KeyValueStore:
        return RedisStore(self.url, schema, limit=32 << 20)

    def open_reader(self, schema: Schema) -> Reader:
        return RedisReader(self.url, schema)


class TestPostgres(OnEachKind):
    abilities = KeyValueAbilities(persistent=True, writers="fencing", sql=True)

    @pytest.fixture(autouse=True)
    def database(self, kv_dsn: str, kind: Kind) -> None:
        self.url = f"{kv_dsn}&{kind}={uuid.uuid4().hex}"

    def open_store(self, schema: Schema) -> KeyValueStore:
        return PostgresStore(self.url, schema)

    def open_reader(self, schema: Schema) -> Reader:
        return PostgresReader(self.url, schema)


class TestSlatedb(OnEachKind):
    abilities = KeyValueAbilities(persistent=True, writers="fencing", max_transaction=32 << 20, reads_one_moment=True)

    def open_store(self, schema: Schema) -> KeyValueStore:
        return SlatedbStore(f"file://{self.path}", schema, limit=32 << 20)

    def open_reader(self, schema: Schema) -> Reader:
        return SlatedbReader(f"file://{self.path}", schema)
