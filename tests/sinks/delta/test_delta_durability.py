"""What of a Delta table is synced when, and what a vacuum may take."""

from __future__ import annotations

from typing import Any

import pytest
from delta_place import AppendPlace, DeltaPlace, MergePlace
from deltalake import DeltaTable
from sink_places import DiskRequests, everything_below

from holdfast.sinks.delta.local_storage import LocalStorage
from holdfast.sinks.sink import StagedOutputGone
from holdfast.testing.conformance.sinks import A, B, delivery


class DeltaFiles(DeltaPlace):
    """Appended to or merged into."""

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


class TestAppend(AppendPlace, DeltaFiles):
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


class TestMerge(MergePlace, DeltaFiles):
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
            patch.setattr(LocalStorage, "sync_log", lambda storage: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                self.sink.commit(descriptor, delivery(1))
        disk = DiskRequests(monkeypatch)
        assert self.open().recover(delivery(1, generation=2), descriptor).committed == 1
        (written,) = self.root.glob("*.parquet")
        assert str(written) in disk.synced
