"""Which manager Spark writes its files on object storage with, and that it keeps what a second attempt writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.workdir.file_manager import SETTING, quick_settings
from holdfast.pipeline.workdir.open import open_workdir
from sparks import FILE_MANAGERS

QUICK = {SETTING: f"{FILE_MANAGERS}.FileSystemBasedCheckpointFileManager"}


@pytest.fixture
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """As users have it: the session of the tests names a manager."""
    chosen = spark.conf.get(SETTING, None)
    spark.conf.unset(SETTING)
    yield spark
    if chosen:
        spark.conf.set(SETTING, chosen)


@pytest.mark.parametrize(
    ("address", "may_differ", "expected"),
    [("s3a://bucket/work", False, QUICK), ("s3a://bucket/work", True, {}), ("/data/work", False, {})],
)
def test_the_quick_one_is_for_queries_that_compute_the_same_again(
    spark: SparkSession, address: str, may_differ: bool, expected: dict[str, str]
) -> None:
    assert quick_settings(open_workdir(address), spark, may_differ=may_differ) == expected


@pytest.mark.s3
@pytest.mark.parametrize(("may_differ", "kept"), [(True, b"second"), (False, b"first")])
def test_the_file_of_a_second_attempt(spark: SparkSession, s3a_bucket: str, may_differ: bool, kept: bytes) -> None:
    """If Spark's quick manager ever keeps the second file as well, it can be used for every query."""
    address = f"s3a://{s3a_bucket}/work"
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{address}/{may_differ}/state/0/0/1.delta")
    settings: Any = spark._jsparkSession.sessionState().newHadoopConf()
    for name, value in quick_settings(open_workdir(address), spark, may_differ=may_differ).items():
        settings.set(name, value)
    manager = getattr(jvm, f"{FILE_MANAGERS}.CheckpointFileManager").create(path.getParent(), settings)
    manager.mkdirs(path.getParent())
    for attempt in (b"first", b"second"):
        stream = manager.createAtomic(path, True)
        stream.write(attempt)
        stream.close()
    assert bytes(manager.open(path).readAllBytes()) == kept
