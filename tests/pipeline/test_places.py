"""The same pipeline with checkpoints and workdir on a disk, on S3 and on HDFS: the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from works import PROVIDERS

from holdfast.errors import HoldfastError, Invalid
from holdfast.pipeline.workdir.file_manager import SETTING
from holdfast.pipeline.workdir.remote import RemoteWorkdir
from holdfast.pipeline.workdir.stamps import remove_stamps
from holdfast.pipeline.workdir.workdir import STAMPS
from holdfast.sinks import FileSink
from holdfast.spark import Pipeline, watch
from holdfast.storage.objects.spark_access import spark_access
from products import in_turn
from servers.hdfs import HdfsServer
from sparks import FILE_MANAGERS, configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOPS = 3


class Shop:
    """Orders that arrive in files, and a pipeline that counts them by shop."""

    def __init__(self, spark: SparkSession, folder: Path, place: str) -> None:
        self.spark, self.folder, self.place = spark, folder, place
        (folder / "orders").mkdir()
        self.files = 0
        self.said: list[str] = []

    def run(self) -> Pipeline:
        """One file more, and a run to the end of it."""
        self.files += 1
        lines = [json.dumps({"shop": number % SHOPS}) for number in range(SHOPS * self.files)]
        (self.folder / "orders" / f"{self.files}.json").write_text("\n".join(lines))
        pipeline = Pipeline("orders", checkpoints=f"{self.place}/store", workdir=f"{self.place}/workdir")
        orders = self.spark.readStream.schema("shop long").json(str(self.folder / "orders"))
        pipeline.sink("files", FileSink(self.folder / "files"))
        stop = watch(lambda event: self.said.append(str(getattr(event, "text", ""))))
        try:
            counted = pipeline.source("orders", orders).groupBy("shop").count()
            pipeline.run(counted, output_mode="update", trigger={"availableNow": True})
        finally:
            stop()
        return pipeline

    def check(self) -> None:
        found = self.spark.read.parquet(str(self.folder / "files")).collect()
        due = [(epoch, shop, sum(range(1, epoch + 1))) for epoch in range(1, self.files + 1) for shop in range(SHOPS)]
        assert sorted((row["epoch"], row["shop"], row["count"]) for row in found) == due


def address_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "local":
        return str(tmp_path / "place")
    if kind == "s3":
        return f"s3a://{request.getfixturevalue('s3a_bucket')}/place"
    server: HdfsServer = request.getfixturevalue("hdfs")
    return server.new_folder()


@pytest.mark.parametrize(("kind", "provider"), in_turn(["local", "s3", "hdfs"], ["hdfs", "rocksdb-changelog"]))
def test_the_same_rows_everywhere(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str, provider: str
) -> None:
    """A first run, one after a clean end, and one after an end that was none."""
    place = address_of(kind, request, tmp_path)
    with configured(spark, PROVIDERS[provider]):
        shop = Shop(spark, tmp_path, place)
        shop.run()
        pipeline = shop.run()
        assert any("Go on with the workdir as it is" in text for text in shop.said)
        assert pipeline.workdir.as_found().directory.exists(STAMPS)
        remove_stamps(pipeline.workdir.as_found())
        shop.said.clear()
        shop.run()
        is_remote = isinstance(pipeline.workdir, RemoteWorkdir)
        assert any("its place is not used again" in text for text in shop.said) == is_remote
        shop.check()


def test_a_file_manager_that_loses_files_is_refused(spark: SparkSession, tmp_path: Path, s3a_bucket: str) -> None:
    unsafe = f"{FILE_MANAGERS}.AbortableStreamBasedCheckpointFileManager"
    with configured(spark, {SETTING: unsafe}), pytest.raises(Invalid, match="state is lost silently") as refused:
        Shop(spark, tmp_path, f"s3a://{s3a_bucket}/place").run()
    assert refused.value.code == "workdir.file-manager"


def test_a_store_that_was_lost_does_not_repeat_what_was_delivered(
    spark: SparkSession, tmp_path: Path, s3a_bucket: str
) -> None:
    """After a crash a new place is empty; the old one still tells that epochs were delivered."""
    place = f"s3a://{s3a_bucket}/place"
    shop = Shop(spark, tmp_path, place)
    pipeline = shop.run()
    remove_stamps(pipeline.workdir.as_found().left_behind() or pipeline.workdir.as_found())
    lost = spark_access(spark, f"{place}/store").open()
    lost.delete([info.key for info in lost.list("")])
    with pytest.raises(HoldfastError) as refused:
        shop.run()
    assert refused.value.code == "store.lost"
