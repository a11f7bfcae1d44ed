"""A pipeline whose input has rows that its sinks refuse, and the work that the crash test kills."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.sinks import DeltaSink, IndexSink, PostgresSink
from holdfast.spark import Pipeline
from holdfast.testing.faults.crash import Acknowledge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id long, name string, amount decimal(10,2)"
TABLE = "CREATE TABLE out (id bigint PRIMARY KEY, name varchar(5) NOT NULL, amount numeric(4,2))"
ONCE = {"availableNow": True}

Item = tuple[int | None, str | None, str | None]


def write_items(folder: Path, *epochs: list[Item]) -> None:
    """Add a file for each epoch."""
    folder.mkdir(exist_ok=True)
    for items in epochs:
        number = len(list(folder.glob("*.json")))
        lines = [json.dumps(dict(zip(("id", "name", "amount"), item, strict=True))) for item in items]
        hidden = folder / f".{number:04}.tmp"
        hidden.write_text("\n".join(lines) + "\n")
        os.utime(hidden, (1_767_225_600 + number,) * 2)
        hidden.rename(folder / f"{number:04}.json")


def items_of(spark: SparkSession, folder: Path) -> Any:
    """The stream of items, one file per epoch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def letters_in(path: Path) -> list[dict[str, Any]]:
    """Every letter that readers of the JSON files see, with the number of the directory it is in."""
    found = []
    for folder in sorted(path.glob("holdfast_epoch=*")):
        for file in sorted(folder.glob("part-*")):
            for line in file.read_text().splitlines():
                letter = json.loads(line)
                letter["row"] = json.loads(letter["row"])
                found.append(letter | {"directory": int(folder.name.rpartition("=")[2])})
    return found


def deliver(acknowledge: Acknowledge, root: str, dsn: str) -> None:
    """Everything there is, into a table of PostgreSQL and a Delta table."""
    from works import Session

    place = Path(root)
    opened = Session(place, "hdfs")
    opened.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    pipeline = Pipeline("items", checkpoints=place / "store")
    items = pipeline.source("items", items_of(opened.spark, place / "items"))
    pipeline.sink("pg", PostgresSink(dsn, "out", "id"), on_refused="dead-letter")
    pipeline.sink("delta", DeltaSink(place / "delta", "id"), on_refused="dead-letter")
    pipeline.run(items, trigger=ONCE)
    acknowledge("done")
    opened.end()


def index_items(acknowledge: Acknowledge, root: str) -> None:
    """Everything there is, into an index."""
    from works import Session

    place = Path(root)
    opened = Session(place, "hdfs")
    opened.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    pipeline = Pipeline("items", checkpoints=place / "store")
    items = pipeline.source("items", items_of(opened.spark, place / "items"))
    pipeline.sink("index", IndexSink(f"sqlite:///{place}/index.db", "id"), on_refused="dead-letter")
    pipeline.run(items, trigger=ONCE)
    acknowledge("done")
    opened.end()
