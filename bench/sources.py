"""Sessions of an index: each against the same writes by hand, with the medium's own client and the same durability."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import redis
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from bench.measure import Row, in_turns
from holdfast.index import Index, open_index
from holdfast.storage.kv.redis_connection import RedisConnection
from servers.postgres import PostgresServer, postgres_server
from servers.valkey import PASSWORD, ValkeyServer, valkey_server

PUTS = 1_000
ROUNDS = 200
SOURCES = 10_000
VALUE = b"v" * 100
POSITION = b"partition-0:123456"

ByHand = Callable[[dict[bytes, bytes], bytes], None]
"""Write these results and this checkpoint in one durable step."""


def rows() -> list[Row]:
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # the test server of PostgreSQL does not sync, and says so
    with tempfile.TemporaryDirectory() as folder, valkey_server() as valkey, postgres_server() as postgres:
        found = []
        for name, url, by_hand, how in [
            ("SQLite", f"sqlite:///{folder}/ours.db", _sqlite(Path(folder, "theirs.db")), "executemany"),
            ("RocksDB", f"rocksdb:///{folder}/ours", _rocksdb(Path(folder, "theirs")), "a synced write batch"),
            ("Valkey", valkey.url(), _redis(valkey), "MULTI with HSET and ZADD, WAITAOF"),
            ("PostgreSQL", f"{postgres.new_database()}&index=i", _postgres(postgres), "INSERT from arrays"),
        ]:
            with open_index(url) as index:
                found.append(_session(name, index, by_hand, how))
                found.append(_reading(name, index))
        return found


def _session(name: str, index: Index, by_hand: ByHand, how: str) -> Row:
    turn = 0
    results: dict[bytes, bytes] = {}

    def prepare() -> None:
        """New keys every other time, so that both sides write the same: a quarter is new, the rest is there already."""
        nonlocal turn, results
        turn += 1
        results = {b"key-%08d" % ((turn - 1) // 2 * PUTS // 4 + number): VALUE for number in range(PUTS)}

    def ours() -> None:
        with index.session():
            for key, value in results.items():
                index.results.put(key, value)
            index.checkpoints.stage_checkpoint("orders", turn, POSITION)

    mine, theirs = in_turns(ours, lambda: by_hand(results, b"%d %s" % (turn, POSITION)), rounds=ROUNDS, prepare=prepare)
    ratio = mine / theirs
    return Row(
        f"session with a checkpoint and {PUTS:,} puts on {name}, against the same writes by hand: {how}",
        f"{ratio:.2f} x",
        "<= 1.3 x",
        ratio <= 1.3,
        f"{mine * 1e3:.2f} ms against {theirs * 1e3:.2f} ms",
    )


def _reading(name: str, index: Index) -> Row:
    with index.session():
        for number in range(SOURCES):
            index.checkpoints.stage_checkpoint(f"source-{number:05}", number, POSITION)
    with _counted(index) as asked:
        found = len(index.checkpoints.read_all_checkpoints())
    trips = f", {len(asked) - asked.count('scan')} round trips" if len(asked) > asked.count("scan") else ""
    return Row(
        f"read_all_checkpoints with {SOURCES:,} sources on {name}",
        f"{asked.count('scan')} scan{trips}",
        "1 scan",
        asked.count("scan") == 1 and found >= SOURCES,
    )


@contextlib.contextmanager
def _counted(index: Index) -> Iterator[list[str]]:
    """What the store is asked for meanwhile."""
    asked: list[str] = []
    store = index._store
    scan, get, ask = store.scan, store.get, RedisConnection.ask

    def counted_ask(line: RedisConnection, *commands: list[object]) -> list[object]:
        asked.append("round trip")
        return ask(line, *commands)

    store.scan = lambda *arguments: (asked.append("scan"), scan(*arguments))[1]  # type: ignore[method-assign]
    store.get = lambda *arguments: (asked.append("get"), get(*arguments))[1]  # type: ignore[method-assign]
    RedisConnection.ask = counted_ask  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        store.scan, store.get = scan, get  # type: ignore[method-assign]
        RedisConnection.ask = ask  # type: ignore[method-assign]


def _sqlite(path: Path) -> ByHand:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    for table in ("meta", "results"):
        database.execute(f"CREATE TABLE {table} (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    def write(results: dict[bytes, bytes], checkpoint: bytes) -> None:
        put = "INSERT INTO {} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        database.execute("BEGIN IMMEDIATE")
        database.executemany(put.format("results"), results.items())
        database.execute(put.format("meta"), (b"orders", checkpoint))
        database.execute("COMMIT")

    return write


def _rocksdb(path: Path) -> ByHand:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(path), options)
    synced = WriteOptions()
    synced.sync = True

    def write(results: dict[bytes, bytes], checkpoint: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in results.items():
            batch.put(b"r" + key, value)
        batch.put(b"morders", checkpoint)
        database.write(batch, synced)

    return write


def _redis(server: ValkeyServer) -> ByHand:
    """In the same shape, or there would be no scan in the order of the keys."""
    client = redis.Redis(port=server.port, password=PASSWORD)

    def write(results: dict[bytes, bytes], checkpoint: bytes) -> None:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.hset("results", mapping=results)
            pipeline.zadd("order", dict.fromkeys(results, 0))
            pipeline.hset("meta", "orders", checkpoint)
            pipeline.execute()
        client.execute_command("WAITAOF", 1, 0, 0)

    return write


def _postgres(server: PostgresServer) -> ByHand:
    connection = psycopg.connect(server.new_database(), autocommit=True)
    for table in ("meta", "results"):
        connection.execute(f"CREATE TABLE {table} (key bytea PRIMARY KEY, value bytea NOT NULL)".encode())

    def write(results: dict[bytes, bytes], checkpoint: bytes) -> None:
        # Arrays: half the time of executemany.
        put = "INSERT INTO {} SELECT * FROM unnest(%b::bytea[], %b::bytea[]) ON CONFLICT (key) DO UPDATE SET value = "
        put += "excluded.value"
        with connection.transaction():
            connection.execute(put.format("results").encode(), [list(results), list(results.values())])
            connection.execute(put.format("meta").encode(), [[b"orders"], [checkpoint]])

    return write
