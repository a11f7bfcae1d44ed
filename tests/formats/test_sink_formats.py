"""Output that version 0.1.0 staged and never committed is committed now, and the next epoch follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pyarrow.dataset
import pytest
from deltalake import DeltaTable
from museum import restore_postgres, take_json, unpack
from museum_sinks import ON_DISK, appended, delivery, frame, merged, sink_on_disk, sink_to_postgres

from holdfast import open_index
from holdfast.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Kept(NamedTuple):
    kind: str
    open: Callable[[], Sink]
    visible: Callable[[], Any]
    """What readers see, not through the sink."""
    expected: Callable[[int], Any]
    """What they must see after so many epochs."""
    staged: Callable[[], list[str]]
    """What waits to be committed."""


def rows(found: Any) -> list[Any]:
    return sorted(((row["id"], row["name"], row["gone"]) for row in found.to_pylist()), key=str)


def on_disk(kind: str, folder: Path) -> Kept:
    def names() -> Any:
        return {row["id"]: row["name"] for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}

    def in_index() -> Any:
        with open_index(f"sqlite:///{folder}/index.db", read_only=True) as index:
            found = [json.loads(value) for _, value in index.results.scan()]
        return {row["id"]: row["name"] for row in found}

    visible, expected, area = {
        "files": (
            lambda: rows(pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table()),
            appended,
            "_staging",
        ),
        "delta": (lambda: rows(DeltaTable(folder).to_pyarrow_table()), appended, "_holdfast_staging"),
        "delta-merge": (names, merged, "_holdfast_staging"),
        "index": (in_index, merged, "index.db.staging"),
    }[kind]
    unpack(f"sink-{kind}.tar.gz", folder)
    return Kept(
        kind,
        lambda: sink_on_disk(kind, folder),
        visible,
        expected,
        lambda: [path.name for path in (folder / area).glob("*")],
    )


def in_postgres(dsn: str) -> Kept:
    def ask(query: str) -> list[Any]:
        with psycopg.connect(dsn) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload, no-any-return]

    restore_postgres(dsn, "sink-postgres.sql")
    return Kept(
        "postgres",
        lambda: sink_to_postgres(dsn),
        lambda: dict(ask("SELECT id, name FROM public.people")),
        merged,
        lambda: [name for (name,) in ask("SELECT tablename FROM pg_tables WHERE tablename LIKE 'holdfast_staged%'")],
    )


@pytest.fixture(params=[*ON_DISK, "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "postgres":
        return in_postgres(request.getfixturevalue("dsn"))
    return on_disk(request.param, tmp_path / "sink")


@pytest.fixture
def descriptor(kept: Kept) -> Any:
    return take_json("sink-descriptors.json")[kept.kind]


def test_what_is_staged_is_committed_once_and_the_next_epoch_follows(
    kept: Kept, descriptor: Any, spark: SparkSession
) -> None:
    assert kept.visible() == kept.expected(1)
    assert len(kept.staged()) == 1
    sink = kept.open()
    standing = sink.recover(delivery(kept.kind, 2, 2), descriptor)
    assert (standing.committed, standing.lineage, len(kept.staged())) == (1, 0, 1)
    for _ in range(2):
        sink.commit(descriptor, delivery(kept.kind, 2, 2))
        assert kept.visible() == kept.expected(2)
        assert kept.staged() == []
    sink.prepare(frame(spark, 3).schema, delivery(kept.kind, 0, 2))
    third = delivery(kept.kind, 3, 2)
    sink.commit(sink.stage(frame(spark, 3), third), third)
    assert kept.visible() == kept.expected(3)
    assert kept.open().recover(delivery(kept.kind, 3, 3), None).committed == 3


def test_what_is_staged_can_be_rolled_back(kept: Kept, descriptor: Any) -> None:
    kept.open().rollback(descriptor, delivery(kept.kind, 2, 2))
    assert kept.staged() == []
    assert kept.visible() == kept.expected(1)


def test_a_start_that_does_not_know_it_sweeps_it(kept: Kept) -> None:
    assert kept.open().recover(delivery(kept.kind, 2, 2), None).committed == 1
    assert kept.staged() == []
    assert kept.visible() == kept.expected(1)
