"""Epochs as directories of files."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest
from sink_places import DiskRequests, committing, elsewhere, everything_below, rows_in_files, staged_in

from holdfast.errors import Corrupt, Invalid, Unavailable
from holdfast.sinks.files import FileSink
from holdfast.sinks.sink import RowsRefused, SinkProgress
from holdfast.testing.conformance.sinks import COLUMNS, A, B, ExactlyOnceConformance, Row, SinkAbilities, delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ["parquet", "orc", "json", "csv"]


class TestParquet(ExactlyOnceConformance):
    abilities = SinkAbilities(exclusive=True)

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark, self.root = spark, tmp_path / "out"

    def open(self) -> FileSink:
        return FileSink(self.root)

    def visible(self) -> list[Row]:
        return rows_in_files(self.root)

    def leftovers(self) -> list[str]:
        return staged_in(self.root / "_staging")

    def test_directory_names(self) -> None:
        self.deliver(A, delivery(17))
        self.deliver(A, delivery(1_234_567))
        self.deliver(A, delivery(3, lineage=2))
        assert sorted(name for name in os.listdir(self.root)) == [
            "_holdfast.json",
            "epoch=000017",
            "epoch=1234567",
            "epoch=2-000003",
        ]
        assert not list(self.root.rglob("*_SUCCESS*"))

    def test_spark_reads_the_epochs_as_a_column(self) -> None:
        self.deliver(A, delivery(1))
        self.stage(B, delivery(2))
        self.deliver(B, delivery(3))
        read = self.spark.read.parquet(str(self.root)).select("epoch", "id")
        assert sorted(map(tuple, read.collect())) == [(1, 1), (1, 2), (3, 3), (3, 4), (3, 5)]

    def test_list_of_the_committed_files(self) -> None:
        with pytest.raises(Unavailable, match="never prepared"):
            self.open().files()
        self.deliver(A, delivery(1_234_567))
        self.deliver(B, delivery(3))
        self.stage(B, delivery(4))
        self.deliver(B, delivery(1, lineage=2))
        found = self.open().files()
        assert [os.path.dirname(path) for path in found] == sorted(os.path.dirname(path) for path in found)
        names = ["epoch=000003", "epoch=1234567", "epoch=2-000001"]
        assert {os.path.dirname(path) for path in found} == {str(self.root / name) for name in names}
        table = pyarrow.dataset.dataset(found, partitioning="hive").to_table()
        assert sorted(table["id"].to_pylist()) == [1, 2, 3, 3, 4, 4, 5, 5]

    def test_stage_syncs_every_file_and_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.sink
        disk = DiskRequests(monkeypatch)
        staged = self.root / "_staging" / self.stage(A, delivery(1))["staged"]
        files = everything_below(staged)
        assert len(files) >= 6  # two parts with their checksums, the epoch, the directory
        assert disk.synced >= files | {str(staged.parent), str(self.root)}

    def test_commit_syncs_the_new_name_and_the_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        self.stage(B, delivery(2))
        disk = DiskRequests(monkeypatch)
        self.sink.commit(descriptor, delivery(1))
        assert disk.synced_since(str(self.root / "epoch=000001")) == {str(self.root), str(self.root / "_staging")}

    def test_what_is_visible_already_is_made_durable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        self.sink.commit(descriptor, delivery(1))
        disk = DiskRequests(monkeypatch)
        self.open().commit(descriptor, delivery(1, generation=2))
        assert str(self.root) in disk.synced
        disk.seen.clear()
        self.open().recover(delivery(1, generation=2), None)
        assert str(self.root) in disk.synced

    def test_empty_directory_is_not_an_epoch(self) -> None:
        assert self.sink
        for name in ("epoch=000001", "epoch=000009", "epoch=8-000009"):
            (self.root / name).mkdir()
        assert self.sink.recover(delivery(0), None) == SinkProgress()
        self.deliver(A, delivery(1))
        assert self.rows() == A
        assert self.sink.recover(delivery(1), None) == SinkProgress(committed=1, lineage=0)

    def test_epoch_without_rows_is_never_taken_for_an_empty_directory(self) -> None:
        """A rename onto it would succeed, and a late driver's rows would show."""
        late = self.stage(A, delivery(1, generation=2))
        self.deliver([], delivery(1))
        for file in (self.root / "epoch=000001").glob("*part-*"):
            file.unlink()
        self.sink.commit(late, delivery(1, generation=2))
        assert not list(self.root.rglob("part-*"))

    def test_pipeline_of_the_same_name_with_another_store(self) -> None:
        descriptor = self.stage(B, elsewhere(1, generation=3))
        self.deliver(A, delivery(1))
        before = everything_below(self.root)
        with pytest.raises(Corrupt, match="another pipeline of the same name"):
            self.stage(B, elsewhere(1))
        for sink in (self.sink, self.open()):
            with pytest.raises(Corrupt) as caught:
                sink.commit(descriptor, committing(1))
            assert (caught.value.code, caught.value.about) == ("sink.other-delivery", str(self.root / "epoch=000001"))
        assert everything_below(self.root) == before
        assert self.leftovers() == [descriptor["staged"]]
        assert self.rows() == A

    def test_what_another_store_of_the_same_name_removed_is_not_taken_for_committed(self) -> None:
        descriptor = self.stage(B, elsewhere(1))
        self.deliver(A, delivery(1))
        assert self.leftovers() == []
        with pytest.raises(Corrupt, match="another pipeline of the same name"):
            self.sink.commit(descriptor, committing(1))
        assert self.rows() == A

    def test_pipeline_of_the_same_name_with_no_rows(self) -> None:
        self.deliver([], delivery(1))
        with pytest.raises(Corrupt, match="another pipeline of the same name"):
            self.deliver([], elsewhere(1))

    def test_own_epoch_is_there(self) -> None:
        first, second = self.stage(A, delivery(1)), self.stage(B, delivery(1, generation=2))
        for descriptor in (first, second, first):
            self.open().commit(descriptor, committing(1))
        assert self.rows() == A

    def test_epochs_that_do_not_tell_what_they_were_read_from(self) -> None:
        """A descriptor of an older release, and a file that somebody lost."""
        older = self.stage(B, elsewhere(1, generation=3))
        self.deliver(A, delivery(1))
        del older["mark"]
        self.sink.commit(older, committing(1))
        for body in (None, b"{", b'{"pipeline":"orders","sink":"out","lineage":0,"epoch":1}'):
            told = self.root / "epoch=000001" / "_epoch"
            told.unlink(missing_ok=True)
            if body is not None:
                told.write_bytes(body)
            self.sink.commit(self.stage(B, elsewhere(1)), committing(1))
        assert self.rows() == A

    def test_unknown_things_in_the_staging_directory_are_left_alone(self) -> None:
        self.stage(A, delivery(1))
        (self.root / "_staging" / "mine").mkdir()
        (self.root / "_staging" / "notes.txt").write_text("x")
        (self.root / "_staging" / "_removing-1" / "deep").mkdir(parents=True)  # a driver died while it removed that
        self.open().recover(delivery(1, generation=9), None)
        assert self.leftovers() == ["mine", "notes.txt"]

    def test_not_mounted(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.root.rename(self.root.with_name("elsewhere"))
        self.root.mkdir()
        for call in (lambda: self.stage(B, delivery(2)), lambda: self.sink.commit(descriptor, delivery(1))):
            with pytest.raises(Unavailable, match="not mounted"):
                call()
        assert os.listdir(self.root) == []

    def test_another_format_or_column_than_before(self) -> None:
        self.deliver(A, delivery(1))
        schema = self.frame([]).schema
        for other in (FileSink(self.root, "json"), FileSink(self.root, epoch_column="batch")):
            with pytest.raises(Invalid, match="keep format"):
                other.prepare(schema, delivery(0))
            with pytest.raises(Invalid):
                other.recover(delivery(0), None)

    def test_owner_that_cannot_be_read(self) -> None:
        self.root.mkdir()
        (self.root / "_holdfast.json").write_text("{")
        with pytest.raises(Invalid, match="the owner of the directory is unknown"):
            self.open().prepare(self.frame([]).schema, delivery(0))

    @pytest.mark.parametrize("name", ["part-0.parquet", "epoch=000001/part-0.parquet", "date=2026-01-01/x.csv"])
    def test_directory_with_foreign_files(self, name: str) -> None:
        (self.root / name).parent.mkdir(parents=True)
        (self.root / name).write_text("x")
        before = everything_below(self.root)
        with pytest.raises(Invalid, match="not Holdfast's") as caught:
            self.open().prepare(self.frame([]).schema, delivery(0))
        assert caught.value.code == "sink.foreign-files"
        assert everything_below(self.root) == before

    def test_directory_with_hidden_files_only(self) -> None:
        self.root.mkdir()
        (self.root / ".keep").write_text("")
        self.deliver(A, delivery(1))
        assert self.rows() == A

    def test_path_that_is_a_file(self) -> None:
        self.root.write_text("x")
        with pytest.raises(Invalid, match="not a directory"):
            self.open().prepare(self.frame([]).schema, delivery(0))
        with pytest.raises(Unavailable):
            FileSink(self.root / "below").prepare(self.frame([]).schema, delivery(0))

    def test_path_that_cannot_be_made(self) -> None:
        with pytest.raises(Unavailable) as caught:
            FileSink("/proc/holdfast").prepare(self.frame([]).schema, delivery(0))
        assert "/proc/holdfast" in str(caught.value)

    def test_epoch_column_in_the_rows(self) -> None:
        schema = self.spark.createDataFrame([], "Epoch int, id int").schema
        with pytest.raises(RowsRefused, match="epoch_column"):
            self.open().prepare(schema, delivery(0))
        assert not self.root.exists()
        other = FileSink(self.root, epoch_column="batch")
        other.prepare(schema, delivery(0))
        to = delivery(1)
        other.commit(other.stage(self.spark.createDataFrame([(7, 1)], schema), to), to)
        assert self.spark.read.parquet(str(self.root)).collect() == [(7, 1, 1)]

    def test_path_with_characters_that_mean_something_elsewhere(self) -> None:
        self.root = self.root.with_name("a b%20[c]{d,e}*?ü#")
        self.deliver(A, delivery(1))
        self.stage(B, delivery(2))
        assert rows_in_files(self.root) == A
        assert FileSink(self.root.as_uri()).recover(delivery(1), None) == SinkProgress(committed=1, lineage=0)

    def test_long_names_with_every_character(self) -> None:
        to = delivery(1, pipeline="ä/..\\%~ " * 40, sink="../" * 40)
        sink = self.open()
        sink.prepare(self.frame([]).schema, to)
        sink.commit(sink.stage(self.frame(A), to), to)
        assert self.rows() == A


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_reads_back_what_was_committed(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Whole path, right schema, an epoch without rows between others."""
    sink = FileSink(tmp_path / "out", format, options={"compression": "gzip" if format != "orc" else "zlib"})
    schema = spark.createDataFrame([], COLUMNS).schema
    sink.prepare(schema, delivery(0))
    for epoch, rows in ((1, []), (2, A), (3, [])):
        to = delivery(epoch)
        sink.commit(sink.stage(spark.createDataFrame(rows, COLUMNS), to), to)
    assert sink.recover(delivery(3), None) == SinkProgress(committed=3, lineage=0)
    reader = spark.read.format(format)
    if format in ("json", "csv"):  # they hold no schema of their own
        reader = reader.schema(schema)
    read = reader.load(str(tmp_path / "out"))
    assert sorted(map(tuple, read.select("id", "name", "epoch").collect())) == [(1, "one", 2), (2, "two", 2)]
    assert [field.dataType for field in read.schema][:2] == [field.dataType for field in schema]


@pytest.mark.parametrize(
    ("format", "columns"),
    [
        ("csv", "a struct<b:int>"),
        ("csv", "a array<int>"),
        ("csv", "a map<string,int>"),
        ("csv", "a variant"),
        ("orc", "a variant"),
        ("csv", "a void"),
        ("orc", "a void"),
        *((format, "a interval") for format in FORMATS),
    ],
)
def test_type_that_a_format_does_not_have(spark: SparkSession, tmp_path: Path, format: str, columns: str) -> None:
    with pytest.raises(RowsRefused) as caught:
        FileSink(tmp_path / "out", format).prepare(spark.createDataFrame([], columns).schema, delivery(0))
    assert "UNSUPPORTED_DATA_TYPE" in str(caught.value)
    assert os.listdir(tmp_path / "out") == ["_holdfast.json"]


def test_option_that_spark_does_not_take(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "out", options={"compression": "nonsense"})
    with pytest.raises(Invalid, match="nonsense") as caught:
        sink.prepare(spark.createDataFrame([], COLUMNS).schema, delivery(0))
    assert caught.value.code == "sink.options"
    assert os.listdir(tmp_path / "out") == ["_holdfast.json"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": "s3://me:hunter2@bucket/x?token=t"}, "a password"),
        ({"path": "abfss://c:hunter2@a.dfs.core.windows.net/x"}, "a password"),
        ({"path": "s3a://bucket/a*"}, "'*'"),
        ({"path": "s3a://bucket/a%20b"}, "'%'"),
        ({"path": "s3a://bucket"}, "no path below its bucket"),
        ({"path": "gs://bucket/"}, "no path below its bucket"),
        ({"path": "s3a://bucket/a//b"}, "empty parts"),
        ({"path": "s3a://bucket//a"}, "empty parts"),
        ({"path": "s3a://bucket/../b"}, ".."),
        ({"path": "abfss:///x"}, "no path"),
        ({"path": "hdfs:///x"}, "hdfs://host:port/path"),
        ({"path": "hdfs://host:8020/"}, "no path"),
        ({"path": "hdfs://host:8020/a:b"}, "colon"),
        ({"path": "az://container/x"}, "abfss://"),
        ({"path": "/x", "storage_options": {"secret_access_key": "hunter2"}}, "leave them out"),
        ({"path": "/x", "keep": "7d"}, "leave keep= out"),
        ({"path": "hdfs://h:1/x", "keep": "7d"}, "leave keep= out"),
        ({"path": "s3://b/x", "keep": "soon"}, "'soon' is not a length of time"),
        ({"path": "s3://b/x", "keep": timedelta(0)}, "no length of time"),
        ({"path": "file://host/x"}, "three slashes"),
        ({"path": ""}, "directory"),
        ({"path": "/x", "format": "avro"}, "parquet"),
        ({"path": "/x", "epoch_column": "a/b"}, "letters"),
        ({"path": "/x", "epoch_column": "_hidden"}, "letters"),
        ({"path": "/x", "epoch_column": ""}, "letters"),
        ({"path": "/x", "options": {"Path": "/y"}}, "leave it out"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        FileSink(**arguments)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "token" not in str(caught.value)


def test_addresses_on_object_storage() -> None:
    one, other = FileSink("s3://bucket/a b/out/"), FileSink("s3a://bucket/a b/out", storage_options={"x": "hunter2"})
    assert one.describe() == other.describe()
    assert one.describe()["path"] == "s3a://bucket/a b/out"
    assert "hunter2" not in repr(other)
    assert FileSink("abfss://c@a.dfs.core.windows.net/out").path == "abfss://c@a.dfs.core.windows.net/out"


def test_a_sink_describes_its_path_and_options_without_secrets() -> None:
    sink = FileSink(
        "file:///data/a%20b", "CSV", epoch_column="batch", options={"header": True, "encryption.Key": "hunter2"}
    )
    assert sink.describe() == {
        "kind": "files",
        "path": "/data/a b",
        "format": "csv",
        "epoch_column": "batch",
        "options": {"header": "true", "encryption.Key": "***"},
    }
    assert "hunter2" not in json.dumps(sink.describe())


@pytest.mark.parametrize("name", ["parquet.encryption.footer.key", "parquet.encryption.key.list", "kms.passphrase"])
def test_an_option_that_may_be_a_secret_is_not_described(name: str) -> None:
    assert FileSink("/data", options={name: "hunter2"}).describe()["options"] == {name: "***"}
