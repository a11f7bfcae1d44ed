"""Epochs on object storage: no rename, a log for Spark's readers, and nothing undecided in anybody's way."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from cloud_files import CloudPlace, HandFrame, layout_of, opened_of, rows_of, use_hands

from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.sinks.files import FileSink
from holdfast.sinks.sink import RowsRefused, SinkProgress
from holdfast.sinks.spark_write import explain
from holdfast.storage.objects import CloudObjects
from holdfast.storage.objects.spark_access import spark_access
from holdfast.testing.conformance.sinks import (
    COLUMNS,
    A,
    B,
    C,
    ExactlyOnceConformance,
    Row,
    SinkAbilities,
    SinkUnderTest,
    delivery,
)
from holdfast.testing.faults.proxy import FaultyProxy
from servers.s3 import READ_ONLY_KEY, S3Server
from sparks import configured, reach_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.s3


class OnS3(SinkUnderTest):
    """Written and read by Spark, through `s3a://`."""

    abilities = SinkAbilities(exclusive=True)

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, s3a_bucket: str, s3_server: S3Server) -> None:
        self.spark, self.bucket, self.s3_server = spark, s3a_bucket, s3_server
        self.root = f"s3a://{s3a_bucket}/lake/out"
        objects = spark_access(spark, f"s3a://{s3a_bucket}").open()
        assert isinstance(objects, CloudObjects)
        self.objects = objects

    def open(self) -> FileSink:
        return FileSink(self.root)

    def keys(self) -> list[str]:
        return [info.key for info in self.objects.list("")]

    def visible(self) -> list[Row]:
        if not any("/part-" in key for key in self.keys()):
            return []
        return [(row.id, row.name) for row in self.spark.read.parquet(self.root).select("id", "name").collect()]

    def leftovers(self) -> list[str]:
        below = "lake/_out.holdfast-staging/"
        return sorted({key.removeprefix(below).partition("/")[0] for key in self.keys() if key.startswith(below)})


@pytest.mark.soak
class TestConformance(OnS3, ExactlyOnceConformance):
    """All of it with Spark. `TestConformanceByHand` takes a tenth of the time."""


class TestConformanceByHand(ExactlyOnceConformance):
    """Staged without Spark, and read as Spark reads it."""

    abilities = SinkAbilities(exclusive=True)

    @pytest.fixture(autouse=True)
    def place(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = CloudPlace(s3_server.new_bucket(), s3_server.options)
        use_hands(monkeypatch.setattr, s3_server.options)

    def open(self) -> FileSink:
        return self.at.sink()

    def frame(self, rows: Sequence[Row]) -> Any:
        return HandFrame(rows)

    def failing_frame(self) -> Any:
        return HandFrame(A, failure=RowsRefused("bad row"))

    def visible(self) -> list[Row]:
        if not any(key.startswith("out/_spark_metadata/") for key in self.at.all_keys()):
            return []
        assert self.at.listed() == self.at.logged()
        return self.at.logged()

    def leftovers(self) -> list[str]:
        return self.at.staged()


class TestS3(OnS3):
    def test_names(self) -> None:
        self.deliver(A, delivery(17))
        self.stage(B, delivery(18))
        self.deliver(A, delivery(1_234_567))
        self.deliver(A, delivery(3, lineage=2))
        names = {key.removeprefix("lake/").partition("/part-")[0] for key in self.keys() if "staging" not in key}
        assert names == {
            "out/_holdfast.json",
            *(f"out/_spark_metadata/{number}" for number in range(4)),
            *(f"out/epoch={epoch}" for epoch in ("000017", "1234567", "2-000003")),
            *(f"out/epoch={epoch}/_epoch" for epoch in ("000017", "1234567", "2-000003")),
        }

    def test_spark_reads_the_epochs_as_a_column(self) -> None:
        self.deliver(A, delivery(1))
        self.stage(B, delivery(2))
        self.deliver(B, delivery(3))
        read = self.spark.read.parquet(self.root).select("epoch", "id")
        rows = [(1, 1), (1, 2), (3, 3), (3, 4), (3, 5)]
        assert sorted(map(tuple, read.collect())) == rows
        half = self.stage(C, delivery(4))
        staging = f"lake/_out.holdfast-staging/{half['staged']}"
        for key in [key for key in self.keys() if key.startswith(staging) and "part-" in key]:
            self.objects.copy(key, f"lake/out/epoch=000004/{key.rpartition('/')[2]}")  # a commit that is under way
        assert sorted(map(tuple, self.spark.read.parquet(self.root).select("epoch", "id").collect())) == rows
        assert sorted(self.streamed()) == [id for _, id in rows]
        self.sink.commit(half, delivery(4))
        assert sorted(self.streamed()) == [1, 2, 3, 4, 5, 6]
        assert self.spark.read.parquet(self.root).where("epoch = 4").count() == 1

    def streamed(self) -> list[int]:
        name = f"seen_{uuid.uuid4().hex}"
        stream = self.spark.readStream.schema(f"{COLUMNS}, epoch int").parquet(self.root)
        query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
        query.awaitTermination()
        return [row.id for row in self.spark.table(name).collect()]

    def test_sparks_readers_follow_a_compacted_log(self) -> None:
        """It is compacted by the sink, and read by Spark; what was staged by hand is as good for that."""
        assert self.sink
        place = CloudPlace(self.bucket, self.s3_server.options, "lake")
        for epoch in range(1, 32):
            place.deliver([(epoch, "x")], delivery(epoch))
        assert "lake/out/_spark_metadata/9.compact" not in self.keys()
        assert self.rows() == [(epoch, "x") for epoch in range(1, 32)]
        assert sorted(self.streamed()) == list(range(1, 32))
        with configured(self.spark, {"spark.sql.streaming.fileSink.log.compactInterval": "3"}):
            assert len(self.rows()) == 31

    def test_nobody_who_lists_files_sees_an_epoch_before_it_is_decided(self) -> None:
        """Every parquet file below the path is read again and again, while epochs are staged, decided and committed."""
        assert self.sink
        decided: set[int] = set()
        seen: set[int] = set()
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                keys = [info.key for info in self.objects.list("lake/out/") if info.key.endswith(".parquet")]
                ids = {id for id, _ in rows_of(self.objects, keys)}
                assert ids <= decided  # which only grows: what was read before was decided before
                seen.update(ids)

        with ThreadPoolExecutor(1) as threads:
            looking = threads.submit(look)
            try:
                for epoch in (1, 2, 3):
                    descriptor = self.stage([(epoch, "x"), (epoch + 10, "y")], delivery(epoch))
                    decided |= {epoch, epoch + 10}
                    self.sink.commit(descriptor, delivery(epoch))
                time.sleep(0.2)
            finally:
                over.set()
            looking.result()
        assert seen == decided

    @pytest.mark.parametrize("name", ["part-0.parquet", "epoch=000001/part-0.parquet", "date=2026-01-01/x.csv"])
    def test_path_with_foreign_files(self, name: str) -> None:
        self.objects.create(f"lake/out/{name}", [b"x"])
        with pytest.raises(Invalid, match="not Holdfast's") as caught:
            self.open().prepare(self.frame([]).schema, delivery(0))
        assert caught.value.code == "sink.foreign-files"
        assert self.keys() == [f"lake/out/{name}"]

    def test_stage_that_fails_leaves_nothing(self) -> None:
        with pytest.raises(RowsRefused, match="bad row"):
            self.sink.stage(self.failing_frame(), delivery(2))
        assert self.leftovers() == []
        assert self.rows() == []

    def test_commit_by_two_drivers_at_once(self) -> None:
        ExactlyOnceConformance.commit_at_once(
            self,  # type: ignore[arg-type]
            (self.stage(A, delivery(1)), delivery(1)),
            (self.stage(B, delivery(1, generation=2)), delivery(1, generation=2)),
        )
        assert self.rows() in (A, B)

    def test_empty_folder_that_was_made_before(self) -> None:
        jvm = self.spark.sparkContext._jvm
        path = jvm.org.apache.hadoop.fs.Path(self.root)  # type: ignore[union-attr]
        path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()).mkdirs(path)  # type: ignore[attr-defined]
        assert "lake/out" in self.keys()
        self.deliver(A, delivery(1))
        assert self.rows() == A

    def test_paths_whose_names_begin_alike(self) -> None:
        self.objects.create("lake/out-of-something-else/part-0.parquet", [b"x"])
        self.deliver(A, delivery(1))
        other = FileSink(f"s3a://{self.bucket}/lake/out-2")
        other.prepare(self.frame([]).schema, delivery(0, sink="copy"))
        assert self.rows() == A

    def test_a_setting_that_lets_late_tasks_replace_staged_files(self) -> None:
        """Spark renames each file twice, whatever the session says: by its task, and by its job once all have ended."""
        hadoop = self.spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
        hadoop.set("mapreduce.fileoutputcommitter.algorithm.version", "2")
        try:
            with FaultyProxy(self.s3_server.endpoint) as proxy:
                reach_bucket(self.spark, self.bucket, proxy.endpoint)
                sink = FileSink(self.root, storage_options=self.s3_server.options)
                opened_of(sink).owner.claim(layout_of(sink).owner(delivery(0)))
                opened_of(sink).log.begin()
                sink.stage(self.frame(A), delivery(1))
                copies = [request for request in proxy.requests if "x-amz-copy-source" in request.headers]
        finally:
            hadoop.set("mapreduce.fileoutputcommitter.algorithm.version", "1")
        assert len(copies) == 4

    def test_json_and_an_epoch_without_rows(self) -> None:
        sink = FileSink(f"s3a://{self.bucket}/deep/er/a b", "json")
        sink.prepare(self.frame([]).schema, delivery(0))
        for epoch, rows in ((1, []), (2, A), (3, [])):
            to = delivery(epoch)
            sink.commit(sink.stage(self.frame(rows), to), to)
        read = self.spark.read.schema(COLUMNS).json(sink.path)
        assert sorted(map(tuple, read.select("id", "name").collect())) == A
        assert sink.recover(delivery(3), None) == SinkProgress(committed=3, lineage=0)
        assert {path.split("/")[-2] for path in sink.files()} == {"epoch=000002"}

    def test_errors_in_words(self) -> None:
        schema = self.frame([]).schema
        for options, scheme, code in (
            (self.s3_server.options | {"aws_access_key_id": READ_ONLY_KEY}, "s3a", "cloud.denied"),
            (self.s3_server.options | {"aws_secret_access_key": "wrong"}, "s3", "cloud.denied"),
        ):
            with pytest.raises(Unavailable) as denied:
                FileSink(f"{scheme}://{self.bucket}/x", storage_options=options).prepare(schema, delivery(0))
            assert denied.value.code == code
        with pytest.raises(NotFound) as missing:
            FileSink("s3a://no-such-bucket/x", storage_options=self.s3_server.options).prepare(schema, delivery(0))
        assert missing.value.code == "bucket.not-found"
        # Spark itself has other keys than Holdfast.
        reach_bucket(self.spark, self.bucket, self.s3_server.endpoint, access_key=READ_ONLY_KEY)
        with pytest.raises(Unavailable) as theirs:
            FileSink(f"s3a://{self.bucket}/y", storage_options=self.s3_server.options).prepare(schema, delivery(0))
        assert theirs.value.code == "cloud.denied"
        assert "Spark" in str(theirs.value)


def test_spark_without_the_connector() -> None:
    error = explain(Exception("java.lang.ClassNotFoundException: S3AFileSystem not found"), "s3a://bucket/x")
    assert isinstance(error, Invalid)
    assert (error.code, "hadoop-aws" in str(error)) == ("sink.connector", True)
