"""Epochs in the log of a Delta table: each once, beside others who commit to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from delta_place import AppendPlace, DeltaPlace, MergePlace
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from sink_places import committing, elsewhere

from holdfast.errors import Conflict, Corrupt, OutcomeUnknown, Unavailable
from holdfast.sinks.delta.log import DeltaLog, application
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.sink import SinkProgress
from holdfast.testing.conformance.sinks import A, B, delivery


class DeltaCommits(DeltaPlace):
    """Appended to or merged into."""

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

    def test_log_that_cannot_be_read(self) -> None:
        assert self.sink
        (self.root / "_delta_log" / f"{0:020}.json").write_text("{")
        with pytest.raises(Corrupt, match="log"):
            self.open().recover(delivery(0), None)


class TestAppend(AppendPlace, DeltaCommits):
    def test_epoch_that_is_not_there_yet_is_not_looked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deliver(A, delivery(1))
        monkeypatch.setattr(DeltaLog, "_entry_of", lambda *_: pytest.fail("the log's entries were read"))
        self.deliver(B, delivery(2))
        assert self.rows() == A + B


class TestMerge(MergePlace, DeltaCommits):
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


def test_application_ids_never_meet() -> None:
    names = [("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a~b", "c"), ("a", "b~c"), ("a", "b")]
    ids = {application(delivery(1, pipeline=pipeline, sink=sink)) for pipeline, sink in names}
    assert len(ids) == len(names)
    assert application(delivery(1, pipeline="orders", sink="lake")) == "holdfast/orders/lake"


def test_other_applications_are_not_ours(tmp_path: Path) -> None:
    schema = Schema.from_json('{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}')
    table = DeltaTable.create(tmp_path, schema)
    properties = CommitProperties(app_transactions=[Transaction("orders", 9)])
    table.create_write_transaction([], "append", table.schema(), [], commit_properties=properties)
    assert DeltaSink(tmp_path).recover(delivery(0), None) == SinkProgress()
