"""Dead letters beside checkpoints on S3 and on HDFS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from letter_place import ONCE, items_of, write_items

import holdfast
from holdfast.base import steps
from holdfast.errors import Invalid, Unavailable
from holdfast.sinks import DeltaSink, FileSink
from holdfast.spark import Pipeline
from holdfast.storage.objects.spark_access import spark_access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["s3", "hdfs"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('s3a_bucket')}/store"
    return str(request.getfixturevalue("hdfs").new_folder())


def test_letters_lie_beside_the_checkpoints(spark: SparkSession, tmp_path: Path, store: str) -> None:
    """Also those of an epoch whose driver failed between the decision and the commit."""

    def run() -> None:
        pipeline = Pipeline("items", checkpoints=store, workdir=tmp_path / "workdir")
        pipeline.sink("delta", DeltaSink(tmp_path / "delta", "id"), on_refused="dead-letter")
        pipeline.run(pipeline.source("items", items_of(spark, tmp_path / "items")), trigger=ONCE, restarts=0)

    write_items(tmp_path / "items", [(1, "one", None), (None, "lost", None)])
    run()
    write_items(tmp_path / "items", [(2, "two", None), (None, "again", None)])

    def fail(name: str, phase: str, _: float) -> None:
        if (name, phase) == ("sink.publish", "begin"):
            raise Unavailable("The service is gone.")

    stop = steps.observe(fail)
    try:
        with pytest.raises(Unavailable, match="gone"):
            run()
    finally:
        stop()
    run()
    assert sorted(DeltaTable(tmp_path / "delta").to_pyarrow_table()["id"].to_pylist()) == [1, 2]
    at = f"{store}/dead-letters".replace("s3://", "s3a://")
    letters = spark.read.json(at).selectExpr("holdfast_epoch", "sink", "get_json_object(row, '$.name')").collect()
    assert sorted(map(tuple, letters)) == [(1, "delta", "lost"), (2, "delta", "again")]
    assert len(FileSink(at, "json", epoch_column="holdfast_epoch").files()) == 2
    access = spark_access(spark, store)
    opened = holdfast.open_store(store, options=access.options)
    assert opened.cleanup_orphans(older_than=0) == 0
    assert opened.recover_latest_validated().skipped == []
    assert spark.read.json(at).count() == 2


def test_no_place_beside_checkpoints_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    write_items(tmp_path / "items", [(1, "one", None)])
    pipeline = Pipeline("items", checkpoints="memory://", workdir=tmp_path / "workdir")
    pipeline.sink("delta", DeltaSink(tmp_path / "delta", "id"), on_refused="dead-letter")
    with pytest.raises(Invalid, match="no place for dead letters beside checkpoints on memory://"):
        pipeline.run(pipeline.source("items", items_of(spark, tmp_path / "items")), trigger=ONCE)
