"""A Delta table: what every sink does, and what is Delta's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_place import AppendPlace, DeltaPlace, MergePlace
from deltalake import DeltaTable
from sink_places import everything_below

from holdfast.errors import Invalid, Unavailable
from holdfast.sinks.delta.sink import PARQUET_SETTINGS, DeltaSink
from holdfast.sinks.sink import SinkProgress
from holdfast.testing.conformance.sinks import A, B, ExactlyOnceConformance, delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaConformance(DeltaPlace, ExactlyOnceConformance):
    """Appended to or merged into."""

    def test_table_that_is_gone(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.root.rename(self.root.with_name("elsewhere"))
        self.root.mkdir()
        for call in (lambda: self.stage(B, delivery(2)), lambda: self.sink.commit(descriptor, delivery(1))):
            with pytest.raises(Unavailable, match="not mounted"):
                call()
        assert everything_below(self.root) == {str(self.root)}

    def test_settings_of_the_session_stay(self) -> None:
        self.spark.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
        try:
            before = {name: self.spark.conf.get(name) for name in PARQUET_SETTINGS}
            self.stage(A, delivery(1))
            assert {name: self.spark.conf.get(name) for name in PARQUET_SETTINGS} == before
        finally:
            self.spark.conf.unset("spark.sql.parquet.writeLegacyFormat")

    def test_path_with_characters_that_mean_something_elsewhere(self) -> None:
        self.root = self.root.with_name("a b[c]{d,e}*?ü#")
        self.deliver(A, delivery(1))
        self.deliver(B, delivery(2))
        assert self.rows() == A + B

    def test_long_names_with_every_character(self) -> None:
        to = delivery(1, pipeline="ä/..\\%~ " * 40, sink="../" * 40)
        sink = self.open()
        sink.prepare(self.frame([]).schema, to)
        sink.commit(sink.stage(self.frame(A), to), to)
        assert self.rows() == A
        assert sink.recover(to, None) == SinkProgress(committed=1, lineage=0)


class TestAppend(AppendPlace, DeltaConformance):
    def test_rows_with_one_key_are_just_rows(self) -> None:
        self.deliver(A, delivery(1))
        self.deliver(A, delivery(2))
        assert self.rows() == sorted(A + A)


class TestMerge(MergePlace, DeltaConformance):
    def test_rows_replace_rows_with_their_key(self) -> None:
        self.deliver(A + B, delivery(1))
        self.deliver([(2, "zwei"), (4, "vier"), (9, "neun")], delivery(2))
        assert self.rows() == [(1, "one"), (2, "zwei"), (3, "three"), (4, "vier"), (5, "five"), (9, "neun")]


@pytest.mark.parametrize("key", [None, "id"], ids=["append", "merge"])
def test_in_a_stream(spark: SparkSession, tmp_path: Path, key: str | None) -> None:
    """There the frame has a session of its own, a copy of the one that started the query."""
    (tmp_path / "in").mkdir()
    for number in (1, 2, 3):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"id": {number}, "at": "2026-01-0{number}T00:00:00Z"}}')
    rows = spark.readStream.schema("id bigint, at timestamp").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    sink = DeltaSink(tmp_path / "table", key)
    sink.prepare(rows.schema, delivery(0))

    def take(frame: DataFrame, batch: int) -> None:
        to = delivery(batch + 1)
        sink.commit(sink.stage(frame, to), to)

    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "work"))
    query.trigger(availableNow=True).start().awaitTermination()
    table = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == [1, 2, 3]
    files = [path for path in (tmp_path / "table").rglob("*.parquet") if "_delta_log" not in path.parts]
    assert {pq.read_schema(file).field("at").type for file in files} == {pa.timestamp("us", "UTC")}
    assert sink.recover(delivery(3), None) == SinkProgress(committed=3, lineage=0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": "s3://me:hunter2@bucket/x"}, "leave them out"),
        ({"path": "/x", "storage_options": {"token": "hunter2"}}, "object storage"),
        ({"path": "/data/50%"}, "percent"),
        ({"path": "/x", "key": []}, "name each column"),
        ({"path": "/x", "key": ["a", "a"]}, "name each column"),
        ({"path": "/x", "key": "a", "delete": "a"}, "name each column"),
        ({"path": "/x", "delete": "gone"}, "key="),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        DeltaSink(**arguments)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_sink_describes_its_table_and_key() -> None:
    assert DeltaSink("/data/x", "id", delete="gone").describe() == {
        "kind": "delta",
        "path": "/data/x",
        "key": ["id"],
        "delete": "gone",
    }


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(Invalid, match=r"pip install 'holdfast\[delta\]'"):
        DeltaSink("/data/x")
