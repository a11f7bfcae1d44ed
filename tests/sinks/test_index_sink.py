"""An index as a sink: rows and positions in one commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import pytest
from sink_places import staged_in

import holdfast
from holdfast.base.steps import Phase, observe
from holdfast.errors import Corrupt, Invalid, Unavailable
from holdfast.index import Index, SourceCheckpoint
from holdfast.index.records import SCHEMA
from holdfast.sinks import IndexSink, RowsRefused, Standing
from holdfast.storage.kv.memory import MemoryStore
from holdfast.testing.conformance.sinks import A, B, C, ExactlyOnceConformance, Row, SinkAbilities, delivery

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
        self.spark, self.url, self.area = spark, f"sqlite://{tmp_path}/i.db", tmp_path / "i.db.staging"

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
        assert self.sink.recover(delivery(1, lineage=1), None) == Standing(1, 1)
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
        assert again.recover(delivery(1, lineage=1), descriptor) == Standing()
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

    def test_the_index_of_another_key(self) -> None:
        self.deliver(A, delivery(1))
        other = IndexSink(self.url, "name")
        with pytest.raises(Invalid, match="by another key"):
            other.recover(delivery(1), None)
        assert self.rows() == A

    def test_what_would_not_be_kept_is_refused_before_any_data_moves(self) -> None:
        frame = self.spark.createDataFrame([], "id bigint, times map<int,int>")
        with pytest.raises(RowsRefused, match="not kept exactly"):
            self.open().prepare(frame.schema, delivery(0))


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
    url = f"sqlite://{tmp_path}/a%20b.db"
    with holdfast.open_index(url) as index:
        assert IndexSink(url, "id").readable_url() == IndexSink(index, "id").readable_url() == url
    with Index(OnAServer()) as index, pytest.raises(Invalid, match="address instead of the index"):
        IndexSink(index, "id", staging=tmp_path).readable_url()


def test_secrets_are_not_shown() -> None:
    sink = IndexSink("postgresql://me:secret@host/db?index=shop&password=secret", "id", staging="/tmp/staging")
    assert sink.describe()["index"] == "postgresql://host/db?index=shop"
