"""Epochs on HDFS: each is one rename of a directory, and everybody who lists the path sees whole epochs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest
from cloud_files import HandFrame, parquet
from sink_places import committing, elsewhere
from sink_works import sink_of

from holdfast.errors import Corrupt, Invalid, Unavailable
from holdfast.sinks.files import FileSink, renamed_files
from holdfast.sinks.sink import Delivery, RowsRefused, SinkProgress, StagedOutputGone
from holdfast.storage.objects import open_objects
from holdfast.storage.objects.hdfs_client import HdfsClient
from holdfast.testing.conformance.sinks import A, B, C, ExactlyOnceConformance, Row, SinkAbilities, delivery
from holdfast.testing.faults.crash import CrashRing, KilledRun
from products import only
from servers.hdfs import HdfsServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKS = f"{Path(__file__).parents[1] / 'sink_works.py'}"


class OnHdfs:
    """One path, looked at without the sink's code."""

    def __init__(self, address: str) -> None:
        self.root = f"{address}/lake/out"
        self.objects: Any = open_objects(self.root)

    def all_keys(self) -> list[str]:
        return [info.key for info in self.objects.list("")]

    def rows(self) -> list[Row]:
        """What a reader sees that lists the path and skips what begins with `_`."""
        found: list[Row] = []
        for key in self.all_keys():
            if not key.startswith("_") and key.endswith(".parquet"):
                body = io.BytesIO(self.objects.read(key, limit=1 << 20))
                found += [(row["id"], row["name"]) for row in pyarrow.parquet.read_table(body).to_pylist()]
        return sorted(found)

    def staged(self) -> list[str]:
        return sorted({key.split("/")[1] for key in self.all_keys() if key.startswith("_staging/")})

    def stage(self, rows: Sequence[Row], to: Delivery) -> dict[str, Any]:
        descriptor: dict[str, Any] = json.loads(json.dumps(FileSink(self.root).stage(HandFrame(rows), to)))  # type: ignore[arg-type]
        return descriptor


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """File sinks on HDFS stage `HandFrame`s, without Spark."""

    def write(frame: HandFrame, path: str, *_: object, **__: object) -> None:
        objects = open_objects(path)
        for number in (0, 1):
            objects.create(f"part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet", [parquet(frame.rows[number::2])])
        if frame.failure is not None:
            raise frame.failure

    monkeypatch.setattr(renamed_files, "write_rows", write)
    monkeypatch.setattr(renamed_files, "try_out", lambda _, path, *__, **___: write(HandFrame([]), path))
    monkeypatch.setattr("holdfast.storage.objects.spark_access.active_session", lambda: None)


class ByHand(ExactlyOnceConformance):
    abilities = SinkAbilities(exclusive=True)

    @pytest.fixture(autouse=True)
    def place(self, hdfs: HdfsServer, by_hand: None) -> None:
        self.at = OnHdfs(hdfs.new_folder())
        self.root = self.at.root

    def open(self) -> FileSink:
        return FileSink(self.root)

    def frame(self, rows: Sequence[Row]) -> Any:
        return HandFrame(rows)

    def failing_frame(self) -> Any:
        return HandFrame(A, failure=RowsRefused("bad row"))

    def visible(self) -> list[Row]:
        return self.at.rows()

    def leftovers(self) -> list[str]:
        return self.at.staged()


class TestConformanceByHand(ByHand):
    """Staged without Spark."""

    def test_directory_names(self) -> None:
        self.deliver(A, delivery(17))
        self.deliver(A, delivery(1_234_567))
        self.deliver(A, delivery(3, lineage=2))
        assert {key.partition("/part-")[0] for key in self.at.all_keys()} == {
            "_holdfast.json",
            *(f"epoch={epoch}" for epoch in ("000017", "1234567", "2-000003")),
            *(f"epoch={epoch}/_epoch" for epoch in ("000017", "1234567", "2-000003")),
        }
        assert not self.at.objects.client.is_there(f"{self.at.objects.root}/_staging")

    def test_empty_directory_is_not_an_epoch(self) -> None:
        assert self.sink
        for name in ("epoch=000001", "epoch=000009", "epoch=8-000009"):
            self.at.objects.client.make_folder(f"{self.at.objects.root}/{name}")
        assert self.sink.recover(delivery(0), None) == SinkProgress()
        self.deliver(A, delivery(1))
        assert self.rows() == A
        assert self.sink.recover(delivery(1), None) == SinkProgress(committed=1, lineage=0)

    def test_file_with_the_name_of_an_epoch(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.at.objects.create("epoch=000001", [b"not ours"])
        with pytest.raises(Invalid, match="not a directory"):
            self.sink.commit(descriptor, delivery(1))
        self.at.objects.delete(["epoch=000001"])
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A

    def test_pipeline_of_the_same_name_with_another_store(self) -> None:
        late = self.stage(B, elsewhere(1, generation=3))
        self.deliver(A, delivery(1))
        for act in (lambda: self.sink.commit(late, elsewhere(1)), lambda: self.stage(C, elsewhere(1))):
            with pytest.raises(Corrupt, match="another pipeline"):
                act()
        assert self.rows() == A

    @pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
    def test_a_rename_without_an_answer(self, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
        descriptor = self.stage(A, delivery(1))
        really = HdfsClient.rename

        def silent(client: HdfsClient, old: str, new: str, **how: Any) -> None:
            if landed:
                really(client, old, new, **how)
            raise TimeoutError("no answer within 30 seconds")

        with monkeypatch.context() as faulty:
            faulty.setattr(HdfsClient, "rename", silent)
            if landed:
                self.sink.commit(descriptor, delivery(1))
            else:
                with pytest.raises(Unavailable) as told:
                    self.sink.commit(descriptor, delivery(1))
                assert told.value.code == "hdfs.no-answer"
                assert self.rows() == []
        self.sink.commit(descriptor, committing(1))
        assert self.rows() == A

    def test_a_rename_that_lands_late_shows_the_epoch_once(self) -> None:
        """The NameNode gets to it after another driver has committed the epoch, or after it was staged again."""
        mine, theirs = self.stage(A, delivery(1)), self.stage(B, delivery(1, generation=2))
        root = self.at.objects.root
        self.open().commit(theirs, delivery(1, generation=2))
        with pytest.raises((FileExistsError, FileNotFoundError)):
            self.at.objects.client.rename(f"{root}/_staging/{mine['staged']}", f"{root}/epoch=000001")
        self.sink.commit(mine, delivery(1))
        assert self.rows() == B

    def test_what_another_driver_published_is_made_durable(self, hdfs: HdfsServer) -> None:
        """One edit of the NameNode's log: when that is synced, the rename before it is, too."""
        self.deliver(A, delivery(1))
        status = self.at.objects.client.status
        path = f"{self.at.objects.root}/epoch=000001/_epoch"
        seen: list[str] = []
        really = HdfsClient.note_times
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(HdfsClient, "note_times", lambda client, at: (seen.append(at), really(client, at)))
            self.open().recover(delivery(1, generation=2), None)
        assert seen == [path]
        assert status(path).length

    def test_a_namenode_in_safe_mode(self, hdfs: HdfsServer) -> None:
        descriptor = self.stage(A, delivery(1))
        with hdfs.safe_mode():
            for act in (
                lambda: self.sink.commit(descriptor, delivery(1)),
                lambda: self.sink.rollback(descriptor, delivery(1)),
                lambda: self.stage(B, delivery(2)),
            ):
                with pytest.raises(Unavailable) as told:
                    act()
                assert told.value.code == "hdfs.safe-mode"
                assert "safemode get" in (told.value.next_step or "")
            assert self.rows() == []
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A
        assert self.leftovers() == []

    def test_what_was_removed_while_it_was_staged_is_not_sealed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else an epoch without its rows could be decided."""
        assert self.sink
        written = renamed_files.write_rows

        def swept(frame: Any, path: str, *more: Any, **options: Any) -> None:
            written(frame, path, *more, **options)
            self.at.objects.client.remove(f"{self.at.objects.root}/_staging", recursive=True)

        monkeypatch.setattr(renamed_files, "write_rows", swept)
        with pytest.raises(Unavailable) as told:
            self.stage(A, delivery(1))
        assert told.value.code == "hdfs.swept"
        assert self.leftovers() == []

    def test_list_of_the_committed_files_without_java(self) -> None:
        with pytest.raises(Unavailable, match="never prepared"):
            self.open().files()
        self.deliver(A, delivery(2))
        self.stage(B, delivery(3))
        self.deliver(C, delivery(1, lineage=1))
        found = self.open().files()
        assert [file.removeprefix(f"{self.root}/").partition("/")[0] for file in found] == [
            "epoch=000002",
            "epoch=000002",
            "epoch=1-000001",
            "epoch=1-000001",
        ]
        command = [sys.executable, "-m", "holdfast", "files", self.root]
        said = subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=True)
        assert said.stdout.splitlines() == found


class TestWithSpark(ExactlyOnceConformance):
    """Written and read by Spark."""

    abilities = SinkAbilities(exclusive=True)

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, hdfs: HdfsServer) -> None:
        self.spark, self.at = spark, OnHdfs(hdfs.new_folder())

    def open(self) -> FileSink:
        return FileSink(self.at.root)

    def visible(self) -> list[Row]:
        if not self.at.rows():
            return []
        return [(row.id, row.name) for row in self.spark.read.parquet(self.at.root).select("id", "name").collect()]

    def leftovers(self) -> list[str]:
        return self.at.staged()

    def test_every_format(self) -> None:
        for format in ("parquet", "orc", "json", "csv"):
            sink = FileSink(f"{self.at.root}/{format}", format)
            sink.prepare(self.frame([]).schema, delivery(0))
            sink.commit(sink.stage(self.frame(A), delivery(1)), delivery(1))
            read = self.spark.read.schema("id bigint, name string, epoch int").format(format).load(sink.path)
            assert sorted(map(tuple, read.collect())) == [(*row, 1) for row in A]
            assert not [name for name in sink.files() if "_SUCCESS" in name or "_temporary" in name]

    def test_bad_days_of_the_namenode_are_told_by_name(self, hdfs: HdfsServer) -> None:
        """Spark meets them first: it writes the rows."""
        self.deliver(A, delivery(1))
        hdfs.tell(f"quota {self.at.objects.root} 1000000 1000")
        with pytest.raises(Unavailable) as full:
            self.stage(B, delivery(2))
        assert full.value.code == "hdfs.quota"
        hdfs.tell(f"quota {self.at.objects.root} 1000000 1000000000000")
        assert self.leftovers() == []
        with hdfs.safe_mode(), pytest.raises(Unavailable) as safe:
            self.stage(B, delivery(2))
        assert safe.value.code == "hdfs.safe-mode"
        self.deliver(B, delivery(2))
        assert self.rows() == A + B

    def test_nothing_but_data_is_published(self) -> None:
        self.deliver(A, delivery(1))
        names = [key.partition("/")[2] for key in self.at.all_keys() if key.startswith("epoch=")]
        assert [name for name in names if not name.startswith("part-")] == ["_epoch"]


only(
    "test_committed_rows_are_visible",
    "test_epoch_without_rows",
    "test_stage_that_fails_leaves_nothing",
    "test_bad_days_of_the_namenode_are_told_by_name",
    "test_nothing_but_data_is_published",
)(TestWithSpark)


# Killed


class Killed:
    """Drivers that die at steps of one work, each at a path of its own with one epoch committed and one staged."""

    def __init__(self, hdfs: HdfsServer, *, every: int) -> None:
        self._hdfs, self._every = hdfs, every

    def place(self) -> tuple[OnHdfs, dict[str, Any]]:
        at = OnHdfs(self._hdfs.new_folder())
        sink = FileSink(at.root)
        sink.prepare(HandFrame([]).schema, delivery(0))  # type: ignore[arg-type]
        sink.commit(at.stage(A, delivery(1)), delivery(1))
        return at, at.stage(B, delivery(2))

    def everywhere(self, work: str, generation: int, **more: Any) -> Iterator[tuple[OnHdfs, dict[str, Any], KilledRun]]:
        with CrashRing(f"{WORKS}:{work}") as ring:
            at, descriptor = self.place()
            events = ring.record(
                kind="files", root=at.root, descriptor=more.get("keep", descriptor), generation=generation
            )
            assert len(events) >= 2
            for index in range(0, len(events), self._every):
                at, descriptor = self.place()
                given = more.get("keep", descriptor)
                run = ring.kill_at(index, kind="files", root=at.root, descriptor=given, generation=generation)
                assert run.killed
                yield at, descriptor, run


@pytest.fixture(params=[pytest.param(3, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)])
def killed(request: pytest.FixtureRequest, hdfs: HdfsServer, by_hand: None) -> Killed:
    return Killed(hdfs, every=request.param)


@pytest.mark.crash
def test_killed_in_a_commit_all_rows_or_none_are_there(killed: Killed) -> None:
    names = set()
    for at, descriptor, run in killed.everywhere("commit", 1):
        assert run.event is not None
        names.add(run.event.name)
        shown = at.rows()
        assert shown in (A, A + B)
        after = sink_of("files", at.root)
        assert after.recover(delivery(2, generation=2), descriptor).committed == (2 if shown != A else 1)
        after.commit(descriptor, delivery(2, generation=2))
        after.commit(descriptor, delivery(2, generation=3))
        assert at.rows() == A + B
        assert at.staged() == []
    assert names <= {"sink.publish", "hdfs.rename", "sink.publish-sync", "hdfs.secure", "sink.discard"}
    assert {"sink.publish", "sink.publish-sync"} & names


@pytest.mark.crash
def test_killed_in_a_rollback_nothing_becomes_visible(killed: Killed) -> None:
    for at, descriptor, _ in killed.everywhere("rollback", 1):
        after = sink_of("files", at.root)
        after.rollback(descriptor, delivery(2, generation=2))
        assert after.recover(delivery(1, generation=2), None) == SinkProgress(committed=1, lineage=0)
        with pytest.raises(StagedOutputGone):
            after.commit(descriptor, delivery(2, generation=2))
        assert at.rows() == A
        assert at.staged() == []


@pytest.mark.crash
def test_killed_in_a_recovery_what_is_not_owed_goes(killed: Killed) -> None:
    for at, descriptor, _ in killed.everywhere("recover", 2, keep=None):
        after = sink_of("files", at.root)
        assert after.recover(delivery(2, generation=3), None) == SinkProgress(committed=1, lineage=0)
        assert at.staged() == []
        with pytest.raises(StagedOutputGone):
            after.commit(descriptor, delivery(2, generation=3))
        assert at.rows() == A
