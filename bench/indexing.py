"""Epochs into an index: against a plain `foreachBatch` that collects the same rows and writes them by hand."""

from __future__ import annotations

import json
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.epochs import WARM_UP, Epochs, session
from bench.measure import Row
from holdfast.base.addresses import kv_address
from holdfast.index.rows import encoded
from holdfast.sinks import IndexSink
from holdfast.spark import Pipeline

UPSERTS = 100_000
ROUNDS = 6


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, session(Path(folder)) as spark:
        for name, kind, by_hand in (("SQLite", "sqlite", _into_sqlite), ("RocksDB", "rocksdb", _into_rocksdb)):
            place = Path(folder, kind)
            plain = Plain(spark, place / "plain", by_hand(place / "theirs"))
            ours = Ours(spark, place / "ours", kv_address(kind, f"{place}/index"))
            times: dict[Epochs, list[float]] = {ours: [], plain: []}
            for turn in range(WARM_UP + ROUNDS):
                for contender in (ours, plain)[:: 1 if turn % 2 else -1]:
                    seconds = contender.epoch()
                    if turn >= WARM_UP:
                        times[contender].append(seconds)
            ours.close()
            plain.close()
            took, theirs = statistics.median(times[ours]), statistics.median(times[plain])
            yield Row(
                f"epoch of {UPSERTS:,} upserts into {name}, against collecting and writing them by hand",
                f"{took / theirs:.2f} x",
                "<= 1.30 x",
                took <= 1.3 * theirs,
                f"{took:.2f} s against {theirs:.2f} s",
            )


class Upserts(Epochs):
    """Each epoch replaces every row of the one before."""

    def lines(self, number: int) -> Iterator[str]:
        return (json.dumps({"id": n, "name": f"name-{n}", "amount": n * number}) for n in range(UPSERTS))

    def stream(self, spark: Any) -> Any:
        reader = spark.readStream.schema("id long, name string, amount long").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.input))


class Ours(Upserts):
    def __init__(self, spark: Any, root: Path, url: str) -> None:
        super().__init__(root)
        pipeline = Pipeline("bench", checkpoints=str(root / "store"))
        pipeline.sink("index", IndexSink(url, "id"))
        self._run = pipeline.start(self.stream(spark), trigger={"processingTime": "0 seconds"})
        self.follow(self._run._query_run.query, self._run.stop)  # type: ignore[union-attr]


class Plain(Upserts):
    def __init__(self, spark: Any, root: Path, write: Callable[[Any], None]) -> None:
        super().__init__(root)

        def write_batch(frame: Any, _: int) -> None:
            write(encoded(frame, ["id"], None).toArrow())

        writer = self.stream(spark).writeStream.foreachBatch(write_batch).trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", str(root / "workdir")).start()
        self.follow(query, query.stop)


def _into_sqlite(place: Path) -> Callable[[Any], None]:
    place.parent.mkdir(parents=True, exist_ok=True)

    def write(table: Any) -> None:
        database = sqlite3.connect(place, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        database.execute("BEGIN IMMEDIATE")
        pairs = zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True)
        database.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", pairs)
        database.execute("COMMIT")
        database.close()

    return write


def _into_rocksdb(place: Path) -> Callable[[Any], None]:
    from rocksdict import Options, Rdict, WriteBatch, WriteOptions

    def write(table: Any) -> None:
        database = Rdict(str(place), Options(raw_mode=True))
        batch = WriteBatch(raw_mode=True)
        for key, value in zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True):
            batch.put(key, value)
        synced = WriteOptions()
        synced.sync = True
        database.write(batch, synced)
        database.close()

    return write
