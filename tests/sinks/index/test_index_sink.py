"""An index as a sink: rows and positions in one commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
from sink_places import staged_in

import holdfast
from holdfast.base.steps import Phase, observe
from holdfast.errors import Corrupt, Invalid, Unavailable
from holdfast.index import Index, SourceCheckpoint
from holdfast.index.records import SCHEMA
from holdfast.index.rows import columns_of, encoded
from holdfast.sinks import IndexSink, RowsRefused, SinkProgress
from holdfast.sinks.index import staged_rows
from holdfast.sinks.index.sink import STAGED_AS, epoch_of, sequence_of
from holdfast.sinks.index.staged_rows import RowCounts, count_rows
from holdfast.storage.kv.memory import MemoryStore
from holdfast.storage.kv.rocksdb import RocksdbStore
from holdfast.storage.kv.transaction import OVERHEAD
from holdfast.testing.conformance.sinks import (
    A,
    B,
    C,
    ExactlyOnceConformance,
    Row,
    SinkAbilities,
    SinkUnderTest,
    delivery,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IndexPlace(ExactlyOnceConformance):
    abilities = SinkAbilities(exclusive=True, keeps_lineages=False)
    url: str
    area: Path

    def open(self) -> IndexSink:
        return IndexSink(self.url, "id", staging=self.area)

    def visible(self) -> list[Row]:
        with holdfast.open_index(self.url) as index:
            values = (json.loads(value) for _, value in index.results.scan(b""))
            return [(value["id"], value["name"]) for value in values]

    def leftovers(self) -> list[str]:
        return staged_in(self.area)


class TestSqlite(IndexPlace):
    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark, self.url, self.area = spark, f"sqlite:///{tmp_path}/i.db", tmp_path / "i.db.staging"

    def open(self) -> IndexSink:
        return IndexSink(self.url, "id")

    def test_positions_are_committed_with_the_rows(self) -> None:
        self.deliver(A, delivery(1))
        descriptor = self.stage(B, delivery(2))
        with holdfast.open_index(self.url) as index:
            assert index.checkpoints.read_all_checkpoints() == {
                "orders": SourceCheckpoint(1, b'{"logOffset":1}'),
                "clicks": SourceCheckpoint(1, None),
            }
        self.sink.commit(descriptor, delivery(2))
        with holdfast.open_index(self.url) as index:
            assert index.checkpoints.read_checkpoint("orders") == SourceCheckpoint(2, b'{"logOffset":2}')

    def test_a_source_that_the_pipeline_no_longer_has_is_not_compared(self) -> None:
        """Its checkpoint stays in the index, with the epoch that it was last part of."""
        self.deliver(A, delivery(1))
        fewer = msgspec.structs.replace(delivery(2), positions={"orders": "2"})
        descriptor = self.stage(B, fewer)
        self.sink.commit(descriptor, fewer)
        self.open().commit(descriptor, fewer)
        assert self.rows() == A + B

    def test_the_columns_of_the_newest_epoch_are_committed_with_its_rows(self) -> None:
        frame = self.spark.createDataFrame([(7, Decimal("1.50"), True)], "id bigint, price decimal(9,2), gone boolean")
        sink = IndexSink(self.url, "id", delete="gone")
        sink.commit(sink.stage(frame, delivery(1)), delivery(1))
        descriptor = self.stage(A, delivery(2))
        with holdfast.open_index(self.url) as index:
            found = index.results.read_columns()
            assert found == columns_of(frame.drop("gone").schema, None)
        self.sink.commit(descriptor, delivery(2))
        with holdfast.open_index(self.url) as index:
            assert index.results.read_columns() == columns_of(self.frame(A).schema, None)

    def test_an_epoch_that_an_earlier_release_staged(self) -> None:
        descriptor = self.stage(A, delivery(1))
        (self.area / descriptor["staged"] / "_columns.json").rename(self.area / descriptor["staged"] / "_SUCCESS")
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A
        with holdfast.open_index(self.url) as index:
            assert index.results.read_columns() is None

    def test_a_row_replaces_the_one_with_its_key(self) -> None:
        self.deliver(A, delivery(1))
        self.deliver([(2, "another"), (7, "seven")], delivery(2))
        assert self.rows() == [(1, "one"), (2, "another"), (7, "seven")]

    def test_a_flag_deletes(self) -> None:
        self.deliver(A + B, delivery(1))
        sink = IndexSink(self.url, ["id"], delete="gone")
        frame = self.spark.createDataFrame(
            [(1, "x", True), (9, "y", True), (3, "z", False)], "id bigint, name string, gone boolean"
        )
        sink.prepare(frame.schema, delivery(0))
        sink.commit(sink.stage(frame, delivery(2)), delivery(2))
        assert self.rows() == [(2, "two"), (3, "z"), (4, "four"), (5, "five")]

    def test_a_new_lineage_begins_with_an_empty_index(self) -> None:
        self.deliver(A, delivery(7))
        self.deliver(C, delivery(1, lineage=1))
        assert self.rows() == C
        assert self.sink.recover(delivery(1, lineage=1), None) == SinkProgress(1, 1)
        self.deliver(A, delivery(8))  # of a driver that has slept through it
        assert self.rows() == C

    def test_a_reset_that_was_cut_short_is_finished_by_the_next_start(self) -> None:
        self.deliver(A, delivery(7))
        descriptor = self.stage(C, delivery(1, lineage=1))

        def fail(name: str, phase: Phase, _: float) -> None:
            if name == "reset.clear" and phase == "end":
                raise KeyboardInterrupt

        stop = observe(fail)
        try:
            with pytest.raises(KeyboardInterrupt):
                self.sink.commit(descriptor, delivery(1, lineage=1))
        finally:
            stop()
        again = self.open()
        again.prepare(self.frame(C).schema, delivery(0, lineage=1))
        assert again.recover(delivery(1, lineage=1), descriptor) == SinkProgress()
        again.commit(descriptor, delivery(1, lineage=1))
        assert self.rows() == C

    def test_an_index_that_cannot_be_reached_is_refused_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: IndexSink) -> NoReturn:
            raise Unavailable("The server is gone.")

        monkeypatch.setattr(IndexSink, "read", fail)
        with pytest.raises(Unavailable, match="gone"):
            self.open().prepare(self.frame(A).schema, delivery(0))

    def test_a_position_that_is_too_large_is_refused_when_staged(self) -> None:
        large = msgspec.structs.replace(delivery(1), positions={"orders": "x" * 65_537})
        with pytest.raises(RowsRefused, match="'orders'"):
            self.open().stage(self.frame(A), large)
        assert self.leftovers() == []
        largest = msgspec.structs.replace(delivery(1), positions={"orders": "x" * 65_536})
        sink = self.open()
        sink.commit(sink.stage(self.frame(A), largest), largest)
        assert self.rows() == A

    def test_pipeline_of_the_same_name_with_another_store(self) -> None:
        other = msgspec.structs.replace(delivery(1, generation=3), positions={"orders": '{"logOffset":900}'})
        descriptor = self.stage(B, other)
        self.deliver(A, delivery(1))
        for sink in (self.sink, self.open()):
            with pytest.raises(Corrupt) as stopped:
                sink.commit(descriptor, delivery(1, generation=3))
            assert stopped.value.code == "sink.other-delivery"
        assert self.rows() == A
        assert self.leftovers() == [descriptor["staged"]]

    def test_emptied_under_a_driver_at_work(self) -> None:
        self.deliver(A, delivery(1))
        with holdfast.open_index(self.url) as index:
            index.reset()
            index.checkpoints.clear_checkpoints()
        descriptor = self.stage(B, delivery(2))
        with pytest.raises(Corrupt) as stopped:
            self.sink.commit(descriptor, delivery(2))
        assert stopped.value.code == "sink.set-back"
        assert self.rows() == []

    @pytest.mark.parametrize("rows", [[(1, "a"), (1, "b")], [(None, "a")]])
    def test_ambiguous_keys_are_refused_when_staged(self, rows: list[Row]) -> None:
        with pytest.raises(RowsRefused):
            self.stage(rows, delivery(1))
        assert self.leftovers() == []

    def test_a_key_that_is_too_long_is_refused_when_staged(self) -> None:
        sink = IndexSink(self.url, "name")
        with pytest.raises(RowsRefused, match="too long"):
            sink.stage(self.frame([(1, "x" * 5000)]), delivery(1))

    def test_a_row_that_is_too_large_is_refused_when_staged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Spark's test driver has no memory for a row of 64 MiB."""
        monkeypatch.setattr("holdfast.sinks.index.refused_rows.MAX_VALUE_BYTES", len(b'{"id":1,"name":"one"}'))
        self.deliver([(1, "one")], delivery(1))
        with pytest.raises(RowsRefused, match="a row of 22 bytes, as JSON, is too large"):
            self.stage([(2, "1234"), (3, "")], delivery(2))
        assert self.leftovers() == []

    def test_the_index_of_another_key(self) -> None:
        self.deliver(A, delivery(1))
        other = IndexSink(self.url, "name")
        with pytest.raises(Invalid, match="has another key"):
            other.recover(delivery(1), None)
        assert self.rows() == A

    def test_what_would_not_be_kept_is_refused_before_any_data_moves(self) -> None:
        frame = self.spark.createDataFrame([], "id bigint, times map<int,int>")
        with pytest.raises(RowsRefused, match="cannot be stored exactly"):
            self.open().prepare(frame.schema, delivery(0))


LIMIT = 1 << 20


class TestRocksdbOfOneMegabyte(SinkUnderTest):
    """An index that commits no more than a megabyte at once."""

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, tmp_path: Path) -> Iterator[None]:
        self.spark, self.area = spark, tmp_path / "staging"
        with Index(RocksdbStore(str(tmp_path / "index"), SCHEMA, limit=LIMIT)) as self.index:
            yield

    def open(self) -> IndexSink:
        return IndexSink(self.index, "id", staging=self.area)

    def rows_of(self, size: int) -> list[Row]:
        """Four rows that count for `size` bytes in a session, with the two positions of a delivery."""
        beside = len(b'{"id":1}') + len(b'{"id":1,"name":""}') + OVERHEAD
        columns = len(columns_of(self.frame([]).schema, None))
        names = size - 4 * beside - 3 * OVERHEAD - len('orders{"logOffset":1}clicks') - columns
        return [(1, "x" * (names - 3)), (2, "x"), (3, "x"), (4, "x")]

    def test_an_epoch_that_is_larger_than_a_session_is_refused_when_staged(self) -> None:
        with pytest.raises(RowsRefused, match=r"1\.0 MiB") as refused:
            self.stage(self.rows_of(LIMIT + 1), delivery(1))
        assert "workdir" in str(refused.value.next_step)
        assert staged_in(self.area) == []
        assert list(self.index.results.scan()) == []

    def test_the_largest_epoch_that_is_staged_is_committed(self) -> None:
        self.deliver(self.rows_of(LIMIT), delivery(1))
        assert len(list(self.index.results.scan())) == 4

    @pytest.mark.parametrize("exactly", [False, True])
    def test_many_rows_are_measured_on_spark(self, monkeypatch: pytest.MonkeyPatch, exactly: bool) -> None:
        rows: list[Row] = [(1, "x"), (1, "y" * 50), (None, "z"), (22, "")]
        path = str(self.area)
        encoded(self.frame(rows), ["id"], None).write.options(**STAGED_AS).parquet(f"file://{path}")
        here = count_rows(path, self.spark, exactly=exactly)
        monkeypatch.setattr(staged_rows, "COUNTED_HERE", 1)
        assert here == count_rows(path, self.spark, exactly=exactly)
        values = [
            f'{{"id":{number},"name":"{name}"}}' for number, name in ((1, "x"), (1, "y" * 50), ("null", "z"), (22, ""))
        ]
        keys = ['{"id":1}', '{"id":1}', '{"id":22}']
        payload = len("".join(values + keys))
        if exactly:
            assert here == RowCounts(4, 1, 2, 9, len(values[1]), payload)
        else:
            assert (here.rows, here.nulls, here.distinct, here.longest) == (4, 1, 2, 9)
            assert payload <= here.payload <= payload + 500
            assert here.largest >= len(values[1])

    def test_the_size_of_values_that_were_stored_by_their_differences_is_not_guessed(self) -> None:
        """Such a column may be far smaller than its values."""
        rows: list[Row] = [(number, "x" * 5_000) for number in range(20)]
        path = str(self.area)
        options = STAGED_AS | {"parquet.writer.version": "v2"}
        encoded(self.frame(rows), ["id"], None).write.options(**options).parquet(f"file://{path}")
        assert count_rows(path, self.spark) == count_rows(path, self.spark, exactly=True)


def test_values_are_measured_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "BATCH_BYTES", 4 << 20)
    values = [bytes(1 << 20) + bytes(number) for number in range(96)]
    rows = pyarrow.table({"key": [b"%d" % number for number in range(96)], "value": values})
    pyarrow.parquet.write_table(rows, tmp_path / "part.parquet", row_group_size=8, compression="none")
    pool = pyarrow.proxy_memory_pool(pyarrow.default_memory_pool())
    usual = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pool)
    try:
        found = count_rows(str(tmp_path), None, exactly=True)  # type: ignore[arg-type]  # too few rows for Spark
    finally:
        pyarrow.set_memory_pool(usual)
    assert (found.largest, found.payload) == (len(values[-1]), sum(map(len, values)) + 182)
    assert pool.max_memory() < 32 << 20


@pytest.mark.parametrize("arguments", [{"key": []}, {"key": ["a", "a"]}, {"key": "a", "delete": "a"}])
def test_arguments_that_mean_nothing(arguments: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        IndexSink("sqlite:///tmp/x.db", **arguments)  # type: ignore[arg-type]


class OnAServer(MemoryStore):
    """As far as a sink can tell."""

    is_persistent = True

    def __init__(self) -> None:
        super().__init__("", SCHEMA)
        self.address = "redis://host/0?index=shop"


def test_where_executors_find_an_opened_index(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a%20b.db"
    with holdfast.open_index(url) as index:
        assert IndexSink(url, "id").readable_url() == IndexSink(index, "id").readable_url() == url
    with Index(OnAServer()) as index, pytest.raises(Invalid, match="address instead of the index"):
        IndexSink(index, "id", staging=tmp_path).readable_url()


def test_secrets_are_not_shown() -> None:
    sink = IndexSink("postgresql://me:secret@host/db?index=shop&password=secret", "id", staging="/tmp/staging")
    assert sink.describe()["index"] == "postgresql://host/db?index=shop"


def test_sequences_rise_with_epochs_and_lineages() -> None:
    deliveries = [(0, 1), (0, 2), (0, 2**40 - 1), (1, 0), (1, 1), (7, 5), (2**24 - 1, 2**40 - 1)]
    sequences = [sequence_of(lineage, epoch) for lineage, epoch in deliveries]
    assert sequences == sorted(sequences)
    assert [epoch_of(sequence) for sequence in sequences] == deliveries
    assert sequence_of(0, 17) == 17
    for lineage, epoch in ((0, 2**40), (2**24, 0), (-1, 1)):
        with pytest.raises(Invalid):
            sequence_of(lineage, epoch)
