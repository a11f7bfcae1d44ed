"""A driver killed at every step of commit, rollback and recover, and the next driver after it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sink_places import rows_in_files, rows_in_table, staged_in
from sink_works import sink_of

from holdfast.errors import Corrupt
from holdfast.sinks.sink import SinkProgress, StagedOutputGone
from holdfast.testing.conformance.sinks import A, B, Row, SinkUnderTest, delivery
from holdfast.testing.faults.crash import CrashRing, KilledRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKS = f"{Path(__file__).parent / 'sink_works.py'}"
KINDS = ["files", "append", "merge", "columns"]

pytestmark = pytest.mark.crash


class Staged(SinkUnderTest):
    """A target with one epoch committed and one staged, copied for each run."""

    def __init__(self, spark: SparkSession, kind: str, folder: Path) -> None:
        self.spark, self.kind, self.folder = spark, kind, folder
        self.template = folder / "template"
        self.copies = 0
        sink = sink_of(kind, str(self.template))
        sink.prepare(self.frame([]).schema, delivery(0))
        sink.commit(self.stage(A, delivery(1), sink), delivery(1))
        self.descriptor = self.stage(B, delivery(2), sink)

    def frame(self, rows: Sequence[Row]) -> DataFrame:
        frame = super().frame(rows)
        return frame.selectExpr("*", "id + 1 as more") if self.kind == "columns" and rows == B else frame

    def copy(self) -> Path:
        self.copies += 1
        root = self.folder / f"copy-{self.copies}"
        shutil.copytree(self.template, root)
        return root

    def rows_at(self, root: Path) -> list[Row]:
        return sorted(rows_in_files(root) if self.kind == "files" else rows_in_table(root))

    def staged_at(self, root: Path) -> list[str]:
        return staged_in(root / ("_staging" if self.kind == "files" else "_holdfast_staging"))


@pytest.fixture(params=KINDS, scope="module")
def staged(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    return Staged(spark, request.param, tmp_path_factory.mktemp(request.param))


def killed_everywhere(staged: Staged, work: str, **arguments: Any) -> Iterator[tuple[Path, KilledRun]]:
    with CrashRing(f"{WORKS}:{work}") as ring:
        events = ring.record(kind=staged.kind, root=str(staged.copy()), **arguments)
        assert len(events) >= 2
        for index in range(len(events)):
            root = staged.copy()
            run = ring.kill_at(index, kind=staged.kind, root=str(root), **arguments)
            assert run.killed
            yield root, run


def test_killed_at_every_step_of_a_commit_all_rows_or_none_are_there(staged: Staged) -> None:
    names = set()
    for root, run in killed_everywhere(staged, "commit", descriptor=staged.descriptor, generation=1):
        assert run.event is not None
        names.add(run.event.name)
        assert staged.rows_at(root) in ([*A], [*A, *B])
        after = sink_of(staged.kind, str(root))
        progress = after.recover(delivery(2, generation=2), staged.descriptor)
        assert progress.committed == (2 if len(staged.rows_at(root)) > len(A) else 1)
        after.commit(staged.descriptor, delivery(2, generation=2))
        assert staged.rows_at(root) == [*A, *B]
        assert staged.staged_at(root) == []
        after.commit(staged.descriptor, delivery(2, generation=3))
        assert staged.rows_at(root) == [*A, *B]
    assert (
        names
        == {
            "files": {"sink.publish", "sink.publish-sync", "sink.discard"},
            "append": {"delta.place", "directory.sync", "delta.commit", "delta.sync", "sink.discard"},
            "merge": {"delta.merge", "delta.sync", "sink.discard"},
            "columns": {"delta.rewrite", "delta.sync", "sink.discard"},
        }[staged.kind]
    )


def test_killed_at_every_step_of_a_rollback_nothing_becomes_visible(staged: Staged) -> None:
    for root, _ in killed_everywhere(staged, "rollback", descriptor=staged.descriptor, generation=1):
        assert staged.rows_at(root) == A
        after = sink_of(staged.kind, str(root))
        after.rollback(staged.descriptor, delivery(2, generation=2))
        assert after.recover(delivery(1, generation=2), None) == SinkProgress(committed=1, lineage=0)
        assert staged.staged_at(root) == []
        with pytest.raises(StagedOutputGone):
            after.commit(staged.descriptor, delivery(2, generation=2))
        assert staged.rows_at(root) == A


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "swept"])
def test_killed_at_every_step_of_a_recovery_what_is_owed_stays(staged: Staged, kept: bool) -> None:
    keep = staged.descriptor if kept else None
    for root, _ in killed_everywhere(staged, "recover", descriptor=keep, generation=2):
        assert staged.rows_at(root) == A
        after = sink_of(staged.kind, str(root))
        assert after.recover(delivery(2, generation=3), keep) == SinkProgress(committed=1, lineage=0)
        assert len(staged.staged_at(root)) == kept
        if kept:
            after.commit(staged.descriptor, delivery(2, generation=3))
        assert staged.rows_at(root) == ([*A, *B] if kept else A)


@pytest.mark.parametrize("staged", ["append", "merge"], indirect=True)
def test_log_entry_lost_with_the_power(staged: Staged) -> None:
    """It was written and not synced: the file is there, empty. The epoch is committed once all the same."""
    for root, run in killed_everywhere(staged, "commit", descriptor=staged.descriptor, generation=1):
        newest = max((root / "_delta_log").glob("*.json"))
        if int(newest.stem) < 2 or any(event == ("delta.sync", "end") for event in run.events):
            continue
        newest.write_bytes(b"")
        assert staged.rows_at(root) == A
        sink_of(staged.kind, str(root)).commit(staged.descriptor, delivery(2, generation=2))
        assert staged.rows_at(root) == [*A, *B]


@pytest.mark.parametrize("staged", ["merge"], indirect=True)
def test_merged_file_lost_with_the_power_is_noticed(staged: Staged) -> None:
    """delta-rs writes the file and the log entry in one call, and syncs neither."""
    old = {path.name for path in staged.template.glob("*.parquet")}
    noticed = 0
    for root, run in killed_everywhere(staged, "commit", descriptor=staged.descriptor, generation=1):
        new = [path for path in root.glob("*.parquet") if path.name not in old]
        if not new or ("delta.sync", "end") in run.events or staged.rows_at(root) == A:
            continue
        body = new[0].read_bytes()
        for left in (b"", body[: len(body) // 2], bytes(len(body))):
            new[0].write_bytes(left)
            with pytest.raises(Corrupt, match=new[0].name):
                sink_of("merge", str(root)).commit(staged.descriptor, delivery(2, generation=2))
            with pytest.raises(Corrupt, match=new[0].name):
                sink_of("merge", str(root)).recover(delivery(2, generation=2), staged.descriptor)
        noticed += 1
    assert noticed
