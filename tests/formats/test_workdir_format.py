"""A pipeline that version 0.1.0 left in the middle of an epoch is finished, and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest
from deltalake import DeltaTable
from museum import fixed_place, unpack
from museum_pipeline import CHANGED, PROVIDERS, turnover, write_orders

from holdfast import open_store
from holdfast.spark import Notice, watch
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=PROVIDERS)
def place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Path]:
    """Where it was written: its hash and Spark's own files have the path in them."""
    with fixed_place() as place, configured(spark, PROVIDERS[request.param]):
        yield unpack(f"workdir-{request.param}.tar.gz", place)


def in_files(place: Path) -> list[list[Any]]:
    """Epoch by epoch."""
    folders = sorted((place / "files").glob("epoch=*"))
    assert [folder.name for folder in folders] == [f"epoch={number:06}" for number in range(1, len(folders) + 1)]
    tables = [pyarrow.dataset.dataset(list(folder.glob("*.parquet"))).to_table() for folder in folders]
    return [_sorted(table) for table in tables]


def in_table(place: Path) -> list[Any]:
    return _sorted(DeltaTable(place / "table").to_pyarrow_table())


def _sorted(table: Any) -> list[Any]:
    return sorted((row["shop"], row["cents"], row["orders"]) for row in table.to_pylist())


def merged(epochs: int) -> list[Any]:
    return sorted({row[0]: row for changed in CHANGED[:epochs] for row in changed}.values())


@pytest.mark.slow
@pytest.mark.parametrize("loses_workdir", [False, True], ids=["workdir kept", "workdir lost"])
def test_the_owed_sink_is_finished_and_the_pipeline_goes_on(
    place: Path, spark: SparkSession, loses_workdir: bool
) -> None:
    assert in_files(place) == CHANGED[:2]
    assert in_table(place) == merged(1)
    write_orders(place, range(3, 4))
    if loses_workdir:
        shutil.rmtree(place / "store" / "workdir")
    told: list[str] = []
    off = watch(lambda event: told.append(event.text) if isinstance(event, Notice) else None)
    try:
        pipeline, epochs, frame = turnover(spark, place)
        pipeline.run(frame, output_mode="update", trigger={"availableNow": True})
    finally:
        off()
    assert any("table" in sentence for sentence in told), told
    assert any("rebuil" in sentence.lower() for sentence in told) == loses_workdir, told
    assert in_files(place) == CHANGED
    assert in_table(place) == merged(4)
    assert epochs.seen == 4
    store = open_store(place / "store")
    assert store.list() == [(2, 2), (3, 3), (4, 4)]
    newest = store.load_latest()
    assert newest is not None
    assert set(newest.sink_commit_statuses.values()) == {"Committed"}
    assert newest.own.generation == 2
    assert all(store.validate_checkpoint(number).valid for number in store.list_ids())
    assert not list((place / "table" / "_holdfast_staging").glob("*"))
