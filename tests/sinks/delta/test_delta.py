"""A Delta table: what every sink does, and what is Delta's own. Read back by a reader that is not ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from sink_places import DiskRequests, committing, elsewhere, everything_below, rows_in_table, staged_in

from holdfast.errors import Conflict, Corrupt, Invalid, OutcomeUnknown, Unavailable
from holdfast.sinks.delta.log import DeltaLog, application
from holdfast.sinks.delta.sink import PARQUET_SETTINGS, DeltaSink
from holdfast.sinks.sink import SinkProgress, StagedOutputGone
from holdfast.testing.conformance.sinks import A, B, ExactlyOnceConformance, Row, SinkAbilities, delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaPlace(ExactlyOnceConformance):
    abilities = SinkAbilities(exclusive=False)

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark, self.root = spark, tmp_path / "table"

    def visible(self) -> list[Row]:
        return rows_in_table(self.root)

    def leftovers(self) -> list[str]:
        return staged_in(self.root / "_holdfast_staging")

    def open(self) -> DeltaSink:
        raise NotImplementedError

    def bystander(self, times: int = 1) -> None:
        """Somebody else who commits to the same table."""
        for _ in range(times):
            table = DeltaTable(self.root)
            table.create_write_transaction([], "append", table.schema(), [])

    def version(self) -> int:
        return DeltaTable(self.root).version()

    def test_epoch_is_in_the_same_log_entry_as_its_rows(self) -> None:
        self.deliver(A, delivery(1))
        assert self.version() == 1
        self.deliver(B, delivery(2, lineage=4))
        table = DeltaTable(self.root)
        assert table.transaction_version("holdfast/orders/out/0") == 1
        assert table.transaction_version("holdfast/orders/out/4") == 2
        assert table.transaction_version("holdfast/orders/out") == 4
        assert table.history(1)[0]["holdfast.epoch"] == "2"

    def test_older_lineage_does_not_lower_the_newest(self) -> None:
        self.deliver(A, delivery(1, lineage=4))
        self.deliver(B, delivery(1, lineage=2))
        assert self.sink.recover(delivery(1, lineage=2), None) == SinkProgress(committed=1, lineage=4)

    def test_epochs_survive_checkpoints_and_the_clean_up_of_the_log(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.sink.commit(descriptor, delivery(1))
        self.bystander(3)
        table = DeltaTable(self.root)
        table.create_checkpoint()
        for entry in sorted((self.root / "_delta_log").glob("*.json"))[:-1]:
            entry.unlink()
        self.open().commit(descriptor, delivery(1))
        assert self.rows() == A
        assert self.open().recover(delivery(1), None) == SinkProgress(committed=1, lineage=0)

    def test_commit_beside_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every commit but the last finds that somebody else was first."""
        descriptor, turns = self.stage(A, delivery(1)), iter(range(5))
        self.before_each_commit(monkeypatch, lambda: self.bystander() if next(turns, None) is not None else None)
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A
        assert self.version() == 6

    def test_table_that_is_never_quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        monkeypatch.setattr("holdfast.sinks.delta.log.ATTEMPTS", 3)
        self.before_each_commit(monkeypatch, self.bystander)
        with pytest.raises(Conflict):
            self.sink.commit(descriptor, delivery(1))
        assert self.rows() == []
        monkeypatch.undo()
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A

    def test_commit_that_fails_though_nobody_was_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))

        def full() -> None:
            raise CommitFailedError("No space left on device")

        self.before_each_commit(monkeypatch, full)
        with pytest.raises(Unavailable, match="No space left"):
            self.sink.commit(descriptor, delivery(1))
        monkeypatch.undo()
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A

    def test_table_that_does_not_show_a_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        monkeypatch.setattr(DeltaLog, "committed", lambda *_: None)
        monkeypatch.setattr(DeltaLog, "append", lambda *_: None)
        monkeypatch.setattr("holdfast.sinks.delta.merge", lambda *_: None)
        with pytest.raises(OutcomeUnknown):
            self.sink.commit(descriptor, delivery(1))

    @pytest.mark.parametrize("same", [True, False], ids=["same output", "other output"])
    def test_driver_that_wakes_up_between_its_look_and_its_commit(
        self, monkeypatch: pytest.MonkeyPatch, same: bool
    ) -> None:
        first = self.stage(A, delivery(1))
        second = first if same else self.stage(B, delivery(1, generation=2))
        rival = self.open()

        def overtake() -> None:
            monkeypatch.undo()
            rival.commit(second, delivery(1, generation=2))

        self.before_each_commit(monkeypatch, overtake)
        self.sink.commit(first, delivery(1))
        assert self.rows() == (A if same else B)
        assert self.version() == 1

    def test_pipeline_of_the_same_name_with_another_store(self) -> None:
        staged = {epoch: self.stage(B, elsewhere(epoch, generation=3)) for epoch in (1, 2)}
        for epoch, rows in ((1, A), (2, [])):
            self.deliver(rows, delivery(epoch))
        self.bystander(2)
        for epoch in (1, 2):  # also if the other one is further
            descriptor = staged[epoch]
            with pytest.raises(Corrupt, match="another pipeline of the same name"):
                self.stage(B, elsewhere(epoch))
            for sink in (self.sink, self.open()):
                with pytest.raises(Corrupt) as caught:
                    sink.commit(descriptor, committing(epoch))
                assert (caught.value.code, caught.value.about) == ("sink.other-delivery", str(self.root))
            assert descriptor["staged"] in self.leftovers()
        assert self.rows() == A

    def test_what_another_store_of_the_same_name_removed_is_not_taken_for_committed(self) -> None:
        descriptor = self.stage(B, elsewhere(1))
        self.deliver(A, delivery(1))
        assert self.leftovers() == []
        with pytest.raises(Corrupt, match="another pipeline of the same name"):
            self.sink.commit(descriptor, committing(1))

    def test_another_store_of_the_same_name_commits_after_the_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        theirs = self.stage(A, delivery(1))
        mine = self.stage(B, elsewhere(1, generation=3))

        def overtake() -> None:
            monkeypatch.undo()
            self.open().commit(theirs, delivery(1))

        self.before_each_commit(monkeypatch, overtake)
        with pytest.raises(Corrupt, match="another pipeline of the same name"):
            self.sink.commit(mine, msgspec.structs.replace(committing(1), generation=3))
        assert self.leftovers() == [mine["staged"]]
        assert self.rows() == A

    def test_another_store_of_the_same_name_clears_away_after_the_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        theirs, mine = self.stage(A, delivery(1)), self.stage(B, elsewhere(1))
        really = DeltaSink._staged_files

        def overtaken(sink: DeltaSink, *arguments: Any) -> Any:
            monkeypatch.undo()
            self.open().commit(theirs, delivery(1))
            return really(sink, *arguments)

        monkeypatch.setattr(DeltaSink, "_staged_files", overtaken)
        with pytest.raises(Corrupt, match="another pipeline of the same name"):
            self.sink.commit(mine, committing(1))
        assert self.rows() == A

    def test_own_epoch_is_there(self) -> None:
        first, second = self.stage(A, delivery(1)), self.stage(B, delivery(1, generation=2))
        for descriptor in (first, second, first):
            self.open().commit(descriptor, committing(1))
        assert self.rows() == A
        assert DeltaTable(self.root).history(1)[0]["holdfast.mark"] == first["mark"] == second["mark"]

    def test_epochs_that_do_not_tell_what_they_were_read_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A descriptor of an older release, an entry of one, one that is further back than we look."""
        older = self.stage(B, elsewhere(1, generation=3))
        self.deliver(A, delivery(1))
        del older["mark"]
        self.sink.commit(older, committing(1))
        entry = self.stage([], delivery(2))
        del entry["mark"]
        self.sink.commit(entry, committing(2))
        self.sink.commit(self.stage(B, elsewhere(2)), committing(2))
        monkeypatch.setattr("holdfast.sinks.delta.log.ENTRIES_SEARCHED", 1)
        self.sink.commit(self.stage(B, elsewhere(1)), committing(1))
        assert self.rows() == A

    def before_each_commit(self, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
        really = DeltaLog.properties

        def properties(log: DeltaLog, *arguments: Any) -> CommitProperties:
            found = really(log, *arguments)
            act()
            return found

        monkeypatch.setattr(DeltaLog, "properties", properties)

    def test_commit_syncs_the_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        disk, log = DiskRequests(monkeypatch), self.root / "_delta_log"
        self.sink.commit(descriptor, delivery(1))
        assert disk.synced >= {str(log), str(log / f"{1:020}.json")}
        disk.seen.clear()
        self.open().commit(descriptor, delivery(1))
        assert disk.synced >= {str(log), str(log / f"{0:020}.json"), str(log / f"{1:020}.json")}
        disk.seen.clear()
        self.open().recover(delivery(1), None)
        assert disk.synced >= {str(log), str(log / f"{1:020}.json")}

    def test_checkpoint_of_the_log_is_synced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.sink
        self.bystander(98)
        disk, log = DiskRequests(monkeypatch), self.root / "_delta_log"
        self.deliver(A, delivery(1))
        assert (log / "_last_checkpoint").exists()
        assert disk.synced >= {str(log / "_last_checkpoint"), str(log / f"{99:020}.checkpoint.parquet")}

    def test_new_table_is_synced_with_all_above_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = self.root / "a" / "b"
        disk = DiskRequests(monkeypatch)
        assert self.sink
        log = self.root / "_delta_log"
        above = {self.root, self.root.parent, self.root.parent.parent, self.root.parent.parent.parent}
        assert disk.synced >= {str(path) for path in (log, log / f"{0:020}.json", *above)}

    def test_stage_syncs_every_file_and_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.sink
        disk = DiskRequests(monkeypatch)
        staged = self.root / "_holdfast_staging" / self.stage(A + B, delivery(1))["staged"]
        files = everything_below(staged)
        assert len([path for path in files if path.endswith(".parquet")]) == 2
        assert not [path for path in files if path.endswith((".crc", "_SUCCESS"))]
        assert disk.synced >= files | {str(staged.parent), str(self.root)}

    def test_vacuum_leaves_staged_output_alone(self) -> None:
        descriptor = self.stage(A, delivery(1))
        vacuum: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False, "dry_run": False}
        DeltaTable(self.root).vacuum(**vacuum, full=True)
        self.sink.commit(descriptor, delivery(1))
        DeltaTable(self.root).vacuum(**vacuum, full=True)
        assert self.rows() == A

    def test_table_that_is_gone(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.root.rename(self.root.with_name("elsewhere"))
        self.root.mkdir()
        for call in (lambda: self.stage(B, delivery(2)), lambda: self.sink.commit(descriptor, delivery(1))):
            with pytest.raises(Unavailable, match="not mounted"):
                call()
        assert everything_below(self.root) == {str(self.root)}

    def test_log_that_cannot_be_read(self) -> None:
        assert self.sink
        (self.root / "_delta_log" / f"{0:020}.json").write_text("{")
        with pytest.raises(Corrupt, match="log"):
            self.open().recover(delivery(0), None)

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


class TestAppend(DeltaPlace):
    def open(self) -> DeltaSink:
        return DeltaSink(self.root)

    def test_rows_with_one_key_are_just_rows(self) -> None:
        self.deliver(A, delivery(1))
        self.deliver(A, delivery(2))
        assert self.rows() == sorted(A + A)

    def test_epoch_that_is_not_there_yet_is_not_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deliver(A, delivery(1))
        monkeypatch.setattr(DeltaLog, "_entry_of", lambda *_: pytest.fail("the log's entries were read"))
        self.deliver(B, delivery(2))
        assert self.rows() == A + B

    def test_files_that_vacuum_took_are_noticed(self) -> None:
        """A driver died with its files in place and not in the log, and came back after they had been vacuumed."""
        descriptor = self.stage(A, delivery(1))
        place = self.root / "holdfast" / descriptor["staged"]
        place.parent.mkdir()
        (self.root / "_holdfast_staging" / descriptor["staged"] / "data").rename(place)
        next(place.glob("*.parquet")).unlink()
        with pytest.raises(StagedOutputGone):
            self.sink.commit(descriptor, delivery(1))
        self.deliver(A, delivery(1))
        assert self.rows() == A

    def test_commit_syncs_what_it_put_into_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        disk, place = DiskRequests(monkeypatch), self.root / "holdfast"
        self.sink.commit(descriptor, delivery(1))
        assert disk.synced_since(str(place / descriptor["staged"])) >= {str(place)}
        assert str(self.root) in disk.synced  # `holdfast` is new in it


class TestMerge(DeltaPlace):
    def open(self) -> DeltaSink:
        return DeltaSink(self.root, key=["id"])

    def test_rows_replace_rows_with_their_key(self) -> None:
        self.deliver(A + B, delivery(1))
        self.deliver([(2, "zwei"), (4, "vier"), (9, "neun")], delivery(2))
        assert self.rows() == [(1, "one"), (2, "zwei"), (3, "three"), (4, "vier"), (5, "five"), (9, "neun")]

    def test_epoch_that_changes_nothing_is_committed_once(self) -> None:
        """A merge without effect makes no log entry by itself."""
        self.deliver(A, delivery(1))
        self.deliver([], delivery(2))
        descriptor = self.stage([], delivery(3))
        self.sink.commit(descriptor, delivery(3))
        version = self.version()
        self.sink.commit(descriptor, delivery(3))
        assert self.version() == version
        assert self.open().recover(delivery(3), None).committed == 3

    def test_commit_syncs_what_delta_wrote(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        disk = DiskRequests(monkeypatch)
        self.sink.commit(descriptor, delivery(1))
        (written,) = self.root.glob("*.parquet")
        paths = [path for _, path in disk.seen]
        assert paths.index(str(written)) < paths.index(str(self.root / "_delta_log" / f"{1:020}.json"))

    def test_files_are_checked_and_made_durable_by_recover_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        descriptor = self.stage(A, delivery(1))
        with monkeypatch.context() as patch:
            patch.setattr(DeltaLog, "sync", lambda log: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                self.sink.commit(descriptor, delivery(1))
        disk = DiskRequests(monkeypatch)
        assert self.open().recover(delivery(1, generation=2), descriptor).committed == 1
        (written,) = self.root.glob("*.parquet")
        assert str(written) in disk.synced


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


def test_application_ids_never_meet() -> None:
    names = [("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a~b", "c"), ("a", "b~c"), ("a", "b")]
    ids = {application(delivery(1, pipeline=pipeline, sink=sink)) for pipeline, sink in names}
    assert len(ids) == len(names)
    assert application(delivery(1, pipeline="orders", sink="lake")) == "holdfast/orders/lake"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": "s3://me:hunter2@bucket/x"}, "not a local path"),
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


def test_description() -> None:
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


def test_other_applications_are_not_ours(tmp_path: Path) -> None:
    schema = Schema.from_json('{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}')
    table = DeltaTable.create(tmp_path, schema)
    properties = CommitProperties(app_transactions=[Transaction("orders", 9)])
    table.create_write_transaction([], "append", table.schema(), [], commit_properties=properties)
    assert DeltaSink(tmp_path).recover(delivery(0), None) == SinkProgress()
