"""The contract of a sink: staged rows are invisible, a commit shows them all at once, and only once.

    class TestMySink(ExactlyOnceConformance):       # or SinkConformance, for an at-least-once sink
        abilities = SinkAbilities(exclusive=True)

        @pytest.fixture(autouse=True)
        def place(self, spark, tmp_path): self.spark, self.root = spark, tmp_path

        def open(self): return MySink(self.root / "out")
        def visible(self): return [(row.id, row.name) for row in ...]      # read without the sink's code
        def leftovers(self): return os.listdir(self.root / "waiting")

The tests kill no process: for that, run `commit`, `rollback` and `recover` under `holdfast.testing.faults.crash`.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pyarrow
import pytest

from holdfast.errors import Invalid
from holdfast.sinks.sink import Delivery, Descriptor, RowsRefused, Sink, SinkProgress, StagedOutputGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[int, str]
COLUMNS = "id bigint, name string"
A: list[Row] = [(1, "one"), (2, "two")]
B: list[Row] = [(3, "three"), (4, "four"), (5, "five")]
C: list[Row] = [(6, "six")]


class SinkAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities in which sinks differ. Declared, so that no test has to be skipped."""

    exclusive: bool
    """The target belongs to one sink of one pipeline; if not, several may write to it, each with its own epochs."""
    keeps_lineages: bool = True
    """Rows from before a reset of the pipeline stay; if not, the first epoch after the reset replaces them."""


def delivery(
    epoch: int, *, lineage: int = 0, generation: int = 1, pipeline: str = "orders", sink: str = "out"
) -> Delivery:
    positions = {"orders": f'{{"logOffset":{epoch}}}', "clicks": None}
    return Delivery(pipeline, sink, lineage, epoch, generation, positions)


class SinkUnderTest:
    """One target, opened as often as a test needs; every `open` makes a sink as a new driver would."""

    abilities: SinkAbilities
    spark: SparkSession

    def open(self) -> Sink:
        raise NotImplementedError

    def visible(self) -> Iterable[Row]:
        """The rows that a reader sees: (id, name) of each, in any order. Must not use the sink."""
        raise NotImplementedError

    @functools.cached_property
    def sink(self) -> Sink:
        opened = self.open()
        opened.prepare(self.frame([]).schema, delivery(0))
        return opened

    def frame(self, rows: Sequence[Row]) -> DataFrame:
        """A frame of two partitions, even if they are empty."""
        # From an Arrow table, and shuffled only if necessary: three times as quick as from a list.
        table = pyarrow.table({"id": [id for id, _ in rows], "name": [name for _, name in rows]})
        frame = self.spark.createDataFrame(table, COLUMNS)
        return frame if len(rows) > 1 else frame.repartition(2)

    def failing_frame(self) -> DataFrame:
        """A frame whose evaluation fails on one of its rows."""
        return self.spark.range(4).selectExpr("id", "if(id = 3, raise_error('bad row'), 'fine') as name")

    def stage(self, rows: Sequence[Row], to: Delivery, sink: Sink | None = None) -> Descriptor:
        """Stage the rows; the descriptor has gone through JSON, as for a later driver."""
        descriptor: Descriptor = json.loads(json.dumps((sink or self.sink).stage(self.frame(rows), to)))
        return descriptor

    def deliver(self, rows: Sequence[Row], to: Delivery) -> None:
        self.sink.commit(self.stage(rows, to), to)

    def rows(self) -> list[Row]:
        return sorted(self.visible())


class SinkConformance(SinkUnderTest):
    """Every sink."""

    def test_it_is_a_sink_and_says_what_it_promises(self) -> None:
        assert isinstance(self.sink, Sink)
        assert self.sink.guarantee in ("exactly-once", "at-least-once")

    def test_description_is_plain_and_stable(self) -> None:
        described = self.sink.describe()
        assert json.loads(json.dumps(described)) == described
        assert self.open().describe() == described
        assert self.sink.describe() == described
        assert " at 0x" not in json.dumps(described)

    def test_preparing_again_changes_nothing(self) -> None:
        self.deliver(A, delivery(1))
        self.sink.prepare(self.frame([]).schema, delivery(0, generation=2))
        assert self.rows() == A

    def test_staged_rows_are_invisible(self) -> None:
        self.deliver(A, delivery(1))
        descriptor = self.stage(B, delivery(2))
        assert len(json.dumps(descriptor)) < 4096
        assert self.rows() == A

    def test_committed_rows_are_visible(self) -> None:
        self.deliver(A, delivery(1))
        assert self.rows() == A

    def test_several_epochs(self) -> None:
        for epoch, rows in enumerate((A, B, C), start=1):
            self.deliver(rows, delivery(epoch))
        assert self.rows() == A + B + C

    def test_epoch_without_rows(self) -> None:
        self.deliver([], delivery(1))
        assert self.rows() == []
        self.deliver(A, delivery(2))
        self.deliver([], delivery(3))
        assert self.rows() == A

    def test_rolled_back_rows_never_show(self) -> None:
        first = self.stage(A, delivery(1))
        self.sink.rollback(first, delivery(1))
        self.sink.rollback(first, delivery(1))
        with pytest.raises(StagedOutputGone):
            self.sink.commit(first, delivery(1))
        assert self.rows() == []

    def test_what_is_gone_can_be_staged_again(self) -> None:
        gone = self.stage(A, delivery(1))
        self.sink.rollback(gone, delivery(1))
        with pytest.raises(StagedOutputGone) as caught:
            self.sink.commit(gone, delivery(1))
        assert caught.value.next_step
        self.deliver(A, delivery(1))
        assert self.rows() == A

    def test_rollback_does_not_undo_a_commit(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.sink.commit(descriptor, delivery(1))
        self.sink.rollback(descriptor, delivery(1))
        assert self.rows() == A

    def test_commit_again_in_the_same_process(self) -> None:
        descriptor = self.stage(A, delivery(1))
        for _ in range(3):
            self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A

    def test_new_lineage_delivers_the_same_epochs_again(self) -> None:
        self.deliver(A, delivery(1))
        self.deliver(B, delivery(1, lineage=1))
        assert self.rows() == (A + B if self.abilities.keeps_lineages else B)


class ExactlyOnceConformance(SinkConformance):
    """Every sink that promises exactly-once."""

    def leftovers(self) -> Sequence[object]:
        """The staged outputs that exist now, one element each. Must not use the sink."""
        raise NotImplementedError

    def test_it_promises_exactly_once(self) -> None:
        assert self.sink.guarantee == "exactly-once"

    # Committing

    def test_commit_by_another_driver(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.open().commit(descriptor, delivery(1, generation=2))
        assert self.rows() == A
        self.sink.commit(descriptor, delivery(1))
        self.open().commit(descriptor, delivery(1, generation=3))
        assert self.rows() == A

    def test_commit_of_an_earlier_epoch_again(self) -> None:
        first = self.stage(A, delivery(1))
        self.sink.commit(first, delivery(1))
        self.deliver(B, delivery(2))
        self.open().commit(first, delivery(1))
        assert self.rows() == A + B

    @pytest.mark.parametrize("newer_first", [True, False], ids=["newer first", "older first"])
    def test_what_two_drivers_staged_is_committed_once(self, newer_first: bool) -> None:
        """A query need not be deterministic: the second driver has other rows for the same epoch."""
        older, newer = delivery(1), delivery(1, generation=2)
        commits = [(self.stage(A, older), older), (self.stage(B, newer), newer)]
        for descriptor, to in reversed(commits) if newer_first else commits:
            self.sink.commit(descriptor, to)
        assert self.rows() == (B if newer_first else A)
        assert self.leftovers() == []

    def test_commit_by_two_drivers_at_once(self) -> None:
        for epoch in (1, 2, 3):
            descriptor = self.stage([(epoch, "x")], delivery(epoch))
            self.commit_at_once((descriptor, delivery(epoch)), (descriptor, delivery(epoch, generation=2)))
            assert self.rows() == [(n, "x") for n in range(1, epoch + 1)]
        assert self.leftovers() == []

    def test_commit_of_two_staged_outputs_at_once(self) -> None:
        expected: list[Row] = []
        for epoch in (1, 2, 3):
            mine, theirs = delivery(epoch), delivery(epoch, generation=2)
            first, second = self.stage([(epoch, "mine")], mine), self.stage([(epoch, "theirs")], theirs)
            self.commit_at_once((first, mine), (second, theirs))
            found = self.rows()
            assert found[:-1] == expected
            assert found[-1] in [(epoch, "mine"), (epoch, "theirs")]
            expected = found
        # The second commit may not have been allowed to remove the other's staged output; a takeover removes it.
        self.open().recover(delivery(3, generation=3), None)
        assert self.leftovers() == []

    def test_commit_leaves_nothing_staged(self) -> None:
        descriptor = self.stage(A, delivery(1))
        assert len(self.leftovers()) == 1
        self.sink.commit(descriptor, delivery(1))
        assert self.leftovers() == []

    def test_commit_of_what_nobody_staged(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.open().rollback(descriptor, delivery(1))
        with pytest.raises(StagedOutputGone):
            self.open().commit(descriptor, delivery(1, generation=2))
        assert self.rows() == []

    def test_descriptor_of_another_delivery_is_refused(self) -> None:
        descriptor = self.stage(A, delivery(1))
        for other in (delivery(2), delivery(1, lineage=1), delivery(1, sink="other")):
            with pytest.raises(Invalid):
                self.sink.commit(descriptor, other)
            with pytest.raises(Invalid):
                self.sink.rollback(descriptor, other)
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A

    # Staging

    def test_staging_again_does_not_disturb_what_was_staged(self) -> None:
        first = self.stage(A, delivery(1))
        second = self.stage(B, delivery(1))
        third = self.stage(C, delivery(1, generation=2), self.open())
        self.sink.rollback(second, delivery(1))
        self.sink.rollback(third, delivery(1, generation=2))
        self.sink.commit(first, delivery(1))
        assert self.rows() == A

    def test_stage_that_fails_leaves_nothing(self) -> None:
        self.deliver(A, delivery(1))
        with pytest.raises(RowsRefused) as caught:
            self.sink.stage(self.failing_frame(), delivery(2))
        assert "bad row" in str(caught.value)
        assert self.leftovers() == []
        assert self.rows() == A

    # Recovery

    def test_a_new_sink_has_no_progress(self) -> None:
        assert self.open().recover(delivery(0), None) == SinkProgress()
        assert self.sink.recover(delivery(0), None) == SinkProgress()

    def test_progress_is_the_newest_committed_epoch(self) -> None:
        self.deliver(A, delivery(1))
        self.deliver(B, delivery(2))
        kept = self.stage(C, delivery(3))
        assert self.open().recover(delivery(3, generation=2), kept) == SinkProgress(committed=2, lineage=0)
        self.sink.commit(kept, delivery(3))
        assert self.open().recover(delivery(3, generation=2), None) == SinkProgress(committed=3, lineage=0)

    def test_progress_is_counted_for_each_lineage(self) -> None:
        self.deliver(A, delivery(5))
        self.deliver(B, delivery(2, lineage=3))
        before = 5 if self.abilities.keeps_lineages else None
        assert self.open().recover(delivery(5), None) == SinkProgress(committed=before, lineage=3)
        assert self.open().recover(delivery(2, lineage=3), None) == SinkProgress(committed=2, lineage=3)
        assert self.open().recover(delivery(0, lineage=4), None) == SinkProgress(committed=None, lineage=3)

    def test_recover_sweeps_earlier_generations_only(self) -> None:
        old, kept = self.stage(B, delivery(1)), self.stage(A, delivery(1))
        mine = self.stage(B, delivery(2, generation=2))
        newer = self.stage(C, delivery(2, generation=3))
        assert len(self.leftovers()) == 4
        self.open().recover(delivery(1, generation=2), kept)
        assert len(self.leftovers()) == 3
        with pytest.raises(StagedOutputGone):
            self.sink.commit(old, delivery(1))
        self.sink.commit(kept, delivery(1, generation=2))
        self.sink.rollback(mine, delivery(2, generation=2))
        self.sink.commit(newer, delivery(2, generation=3))
        assert self.rows() == A + C

    def test_recover_keeps_what_a_driver_that_was_taken_over_may_still_decide(self) -> None:
        """Else a driver that dies in the middle of its start leaves the epoch in some sinks and not in others."""
        self.deliver(A, delivery(1))
        late = self.stage(B, delivery(2))
        self.open().recover(delivery(1, generation=2), None)
        self.sink.commit(late, delivery(2))
        assert self.rows() == A + B

    def test_recover_keeps_the_first_epoch_after_a_reset(self) -> None:
        self.deliver(A, delivery(5))
        late = self.stage(B, delivery(1, lineage=1))
        self.open().recover(delivery(5, generation=2), None)
        self.sink.commit(late, delivery(1, lineage=1))
        assert self.rows() == (A + B if self.abilities.keeps_lineages else B)

    def test_what_may_still_be_decided_goes_when_the_successor_commits_the_epoch(self) -> None:
        self.deliver(A, delivery(1))
        late = self.stage(B, delivery(2))
        successor = self.open()
        successor.recover(delivery(1, generation=2), None)
        mine = successor.stage(self.frame(C), delivery(2, generation=2))
        successor.commit(mine, delivery(2, generation=2))
        assert self.leftovers() == []
        self.sink.commit(late, delivery(2))
        assert self.rows() == A + C

    def test_recover_again_finds_the_same(self) -> None:
        kept = self.stage(A, delivery(1))
        for generation in (2, 3, 3):
            assert self.open().recover(delivery(1, generation=generation), kept) == SinkProgress()
        self.open().commit(kept, delivery(1, generation=3))
        assert self.rows() == A

    def test_what_was_staged_before_a_restart_is_committed_after_it(self) -> None:
        descriptor = self.stage(A, delivery(1))
        later = self.open()
        later.prepare(self.frame([]).schema, delivery(0, generation=2))
        later.recover(delivery(1, generation=2), descriptor)
        later.commit(descriptor, delivery(1, generation=2))
        assert self.rows() == A

    # Other pipelines and sinks

    @pytest.mark.parametrize(("pipeline", "name"), [("returns", "out"), ("orders", "copy")], ids=["pipeline", "sink"])
    def test_another_pipeline_or_sink(self, pipeline: str, name: str) -> None:
        other = functools.partial(delivery, pipeline=pipeline, sink=name)
        self.deliver(A, delivery(1))
        theirs, schema = self.open(), self.frame([]).schema
        if self.abilities.exclusive:
            with pytest.raises(Invalid) as caught:
                theirs.prepare(schema, other(0))
            assert "orders" in str(caught.value)
            assert self.rows() == A
            return
        theirs.prepare(schema, other(0))
        to = other(1)
        waiting, mine = self.stage(B, to, theirs), self.stage(C, delivery(2))
        assert theirs.recover(other(0, generation=2), waiting) == SinkProgress()
        self.sink.recover(delivery(2, generation=2), mine)
        theirs.commit(waiting, to)
        self.sink.commit(mine, delivery(2))
        assert self.rows() == A + B + C
        assert theirs.recover(to, None) == SinkProgress(committed=1, lineage=0)
        assert self.sink.recover(delivery(2), None) == SinkProgress(committed=2, lineage=0)

    def commit_at_once(self, *commits: tuple[Descriptor, Delivery]) -> None:
        """Run each commit in its own thread with its own sink, all at the same time. Raises their errors."""
        together = threading.Barrier(len(commits))

        def run(descriptor: Descriptor, to: Delivery) -> None:
            sink = self.open()
            together.wait()
            sink.commit(descriptor, to)

        with ThreadPoolExecutor(len(commits)) as threads:
            for outcome in [threads.submit(run, *commit) for commit in commits]:
                outcome.result()
