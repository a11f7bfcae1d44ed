"""A driver killed at every step of a commit, rollback or recovery of a Delta table on S3, and the next one after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta_s3_place import S3Table
from sink_works import sink_of

from holdfast.sinks.sink import Sink, SinkProgress, StagedOutputGone
from holdfast.storage.objects.open import open_objects
from holdfast.testing.conformance.sinks import A, B, Row, SinkUnderTest, delivery
from holdfast.testing.faults.crash import CrashRing, KilledRun
from maven import require_jars
from servers.s3 import S3Server, options_for
from sparks import reach_bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKS = f"{Path(__file__).parents[1] / 'sink_works.py'}"

pytestmark = [pytest.mark.crash, pytest.mark.s3]


class Staged(SinkUnderTest):
    """A table with one epoch committed and one staged, copied for each run."""

    def __init__(self, spark: SparkSession, kind: str, bucket: str, endpoint: str) -> None:
        self.spark, self.kind, self.bucket, self.endpoint = spark, kind, bucket, endpoint
        self.options = options_for(endpoint)
        self.copies = 0
        sink = self.at(f"s3://{bucket}/template")
        sink.prepare(self.frame([]).schema, delivery(0))
        sink.commit(self.stage(A, delivery(1), sink), delivery(1))
        self.descriptor = self.stage(B, delivery(2), sink)

    def frame(self, rows: Sequence[Row]) -> DataFrame:
        frame = super().frame(rows)
        return frame.selectExpr("*", "id + 1 as more") if self.kind == "columns" and rows == B else frame

    def at(self, address: str) -> Sink:
        return sink_of(self.kind, address, self.options)

    def copy(self) -> S3Table:
        self.copies += 1
        table = S3Table(f"s3://{self.bucket}/copy-{self.copies}", self.endpoint)
        template = open_objects(f"s3://{self.bucket}/template", options=self.options)
        for info in template.list(""):
            if info.size:
                table.objects.create(info.key, [template.read(info.key, limit=1 << 20)])
        return table


@pytest.fixture(params=["append", "merge", pytest.param("columns", marks=pytest.mark.soak)], scope="module")
def staged(request: pytest.FixtureRequest, spark: SparkSession, s3_server: S3Server) -> Staged:
    require_jars("s3a")
    bucket = s3_server.new_bucket()
    reach_bucket(spark, bucket, s3_server.endpoint)
    return Staged(spark, request.param, bucket, s3_server.endpoint)


def killed_everywhere(staged: Staged, work: str, **arguments: Any) -> Iterator[tuple[S3Table, KilledRun]]:
    given = {"kind": staged.kind, "options": staged.options, **arguments}
    with CrashRing(f"{WORKS}:{work}") as ring:
        events = ring.record(root=staged.copy().address, **given)
        assert len(events) >= 2
        for index in range(len(events)):
            table = staged.copy()
            run = ring.kill_at(index, root=table.address, **given)
            assert run.killed
            yield table, run


def test_commit(staged: Staged) -> None:
    names = set()
    for table, run in killed_everywhere(staged, "commit", descriptor=staged.descriptor, generation=1):
        assert run.event is not None
        names.add(run.event.name)
        before = sorted(table.rows())
        assert before in (A, A + B)
        after = staged.at(table.address)
        keep = staged.descriptor if before == A else None  # without it, what is committed stays all the same
        assert after.recover(delivery(2, generation=2), keep).committed == (2 if before == A + B else 1)
        assert sorted(table.rows()) == before
        after.commit(staged.descriptor, delivery(2, generation=2))
        assert sorted(table.rows()) == A + B
        assert table.staged() == []
        after.commit(staged.descriptor, delivery(2, generation=3))
        assert sorted(table.rows()) == A + B
    committed = {"append": "delta.commit", "merge": "delta.merge", "columns": "delta.rewrite"}
    assert names == {committed[staged.kind], "sink.discard", "object.delete"}


@pytest.mark.parametrize("staged", ["append", pytest.param("merge", marks=pytest.mark.soak)], indirect=True)
def test_rollback(staged: Staged) -> None:
    for table, _ in killed_everywhere(staged, "rollback", descriptor=staged.descriptor, generation=1):
        assert table.rows() == A
        after = staged.at(table.address)
        after.rollback(staged.descriptor, delivery(2, generation=2))
        assert after.recover(delivery(1, generation=2), None) == SinkProgress(committed=1, lineage=0)
        assert table.staged() == []
        assert len(table.data()) == (2 if staged.kind == "append" else 0)
        with pytest.raises(StagedOutputGone):
            after.commit(staged.descriptor, delivery(2, generation=2))
        assert table.rows() == A


@pytest.mark.parametrize("staged", ["append", pytest.param("merge", marks=pytest.mark.soak)], indirect=True)
@pytest.mark.parametrize("kept", [pytest.param(True, marks=pytest.mark.soak), False], ids=["kept", "swept"])
def test_recover(staged: Staged, kept: bool) -> None:
    keep = staged.descriptor if kept else None
    for table, _ in killed_everywhere(staged, "recover", descriptor=keep, generation=2):
        assert table.rows() == A
        after = staged.at(table.address)
        assert after.recover(delivery(2, generation=3), keep) == SinkProgress(committed=1, lineage=0)
        assert len(table.staged()) == kept
        if kept:
            after.commit(staged.descriptor, delivery(2, generation=3))
        assert sorted(table.rows()) == (A + B if kept else A)
