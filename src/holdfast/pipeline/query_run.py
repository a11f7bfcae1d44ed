"""One run of Spark's query: the `foreachBatch` callback, the frame that several sinks read, and progress reports."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.jvm import is_one_process
from holdfast.base.stopping import StopRequest
from holdfast.errors import Invalid, one_line
from holdfast.pipeline.definition import PreparedPipeline
from holdfast.pipeline.epoch import EpochCoordinator, ReplayedEpoch
from holdfast.pipeline.epoch_manifest import EpochFacts, read_epoch_facts
from holdfast.pipeline.reports import EpochReport, StepClock, tell
from holdfast.pipeline.workdir.workdir import SPOOL, Workdir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

POLL = 0.1
_LAG_UNITS = {"maxOffsetsBehindLatest": "offsets", "numFilesOutstanding": "files", "numBytesOutstanding": "bytes"}


class FrameCache:
    """Holds an epoch's frame while its sinks read it, so that Spark computes it at most once.

    One sink that takes the frame as it is computes it by writing it: nothing is held. Otherwise the frame is persisted.
    Where a lost executor could make Spark compute a part again, and that might give other rows, the frame is written to
    disk first: all sinks of an epoch get the same rows, whatever happens between them.
    """

    def __init__(self, *, is_read_once: bool, may_differ: bool, spool: Path) -> None:
        self._is_read_once = is_read_once
        self._may_differ = may_differ
        self._spool = spool

    @contextlib.contextmanager
    def hold(self, frame: DataFrame) -> Iterator[DataFrame]:
        """The frame, computed at most once until the block ends."""
        if self._is_read_once:
            yield frame
        elif self._may_differ:
            yield from self._spooled(frame)
        else:
            persisted = frame.persist()
            try:
                yield persisted
            finally:
                persisted.unpersist()

    def _spooled(self, frame: DataFrame) -> Iterator[DataFrame]:
        shutil.rmtree(self._spool, ignore_errors=True)
        place = f"file://{self._spool}"  # as it is: Hadoop would take an escaped space for its name
        frame.write.parquet(place)
        try:
            yield frame.sparkSession.read.schema(frame.schema).parquet(place)
        finally:
            shutil.rmtree(self._spool, ignore_errors=True)


class StopRequested(Exception):
    """A batch that came after the pipeline was asked to stop: ends the query, and nothing of it was begun."""


class QueryRun:
    """One run of Spark's query, from its start to its end. Every batch is an epoch of ours."""

    def __init__(
        self,
        prepared: PreparedPipeline,
        coordinator: EpochCoordinator,
        *,
        workdir: Workdir,
        generation: int,
        lineage: int,
        replays: bool,
    ) -> None:
        definition, query = prepared.definition, prepared.query
        sinks = list(definition.sinks.values())
        self._prepared = prepared
        self._pipeline = definition.name
        self._workdir = workdir
        self._sources = tuple(source.name for source in query.sources)
        self._coordinator = coordinator
        self._frame_cache = FrameCache(
            is_read_once=len(sinks) == 1 and sinks[0].computes_all,
            may_differ=not query.is_deterministic and not is_one_process(definition.frame.sparkSession),
            spool=workdir.path / f"{SPOOL}-{generation}",
        )
        self._lineage = lineage
        self.replays = replays
        """Whether Spark begins with an epoch that was decided before."""
        self.has_come_to_a_batch = False
        """Whether Spark has called us at all: if not, it may have given up over its directory."""
        self._query_id: str | None = None
        self._stopping = StopRequest()
        self._steps = StepClock()
        self._done: dict[int, tuple[dict[str, float], bool]] = {}
        self._reporting = threading.Lock()
        self._reported = -1
        self._summary: dict[str, Any] = {}
        self._was_refused = False
        self.failure: BaseException | None = None
        self.epochs = 0
        """How many epochs this run has delivered; a replayed one does not count."""
        self.query: StreamingQuery | None = None

    def start(self) -> None:
        """Start the query. `Invalid` if Spark refuses it."""
        definition = self._prepared.definition
        frame: DataFrame = definition.frame
        writer = (
            frame.writeStream.foreachBatch(self.run_batch)
            .outputMode(definition.output_mode)
            .option("checkpointLocation", f"file://{self._workdir.path}")
            .queryName(definition.name)
        )
        try:
            if definition.trigger:
                writer = writer.trigger(**definition.trigger)
            self.query = writer.start()
        except Exception as error:
            self.close()
            raise Invalid(
                f"Spark does not run this query: {one_line(error)}",
                code="pipeline.refused-by-spark",
                about=f"pipeline {definition.name!r}",
                unchanged="every checkpoint and every sink",
                next_step="change the query, its output mode or its trigger",
            ) from error

    def run_batch(self, frame: DataFrame, batch_id: int) -> None:
        """What Spark calls for each batch. Returns only once every sink has the epoch."""
        self.has_come_to_a_batch = True
        self.report()  # of the one before, if no thread waits for the end
        if self._stopping.is_made():
            # Spark has planned one batch more. It is not begun; the next start finds it planned and runs it.
            self._was_refused = True
            raise StopRequested
        try:
            facts = self._read_facts(batch_id)
            self._steps.taken()
            epoch = self._coordinator.classify(facts.epoch)
            with self._frame_cache.hold(frame) as held:
                self._coordinator.run(epoch, held, facts)
            is_replay = isinstance(epoch, ReplayedEpoch)
            self._done[batch_id] = (self._steps.taken(), is_replay)
            self.epochs += not is_replay
        except BaseException as error:
            self.failure = error
            raise

    def _read_facts(self, batch_id: int) -> EpochFacts:
        spark_checkpoint = self._workdir.spark_checkpoint
        if self._query_id is None:  # it is the same for the whole life of the query
            self._query_id = spark_checkpoint.query_id()
        return read_epoch_facts(
            spark_checkpoint,
            self._prepared,
            batch_id=batch_id,
            lineage=self._lineage,
            query_id=self._query_id,
            last_epoch=self._summary,
        )

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended, reporting epochs as they are done; False if the time is up before."""
        assert self.query is not None
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.query.isActive:
            self.report()
            if self._stopping.is_made():
                self._end_if_idle()
            if deadline is not None and time.monotonic() >= deadline:
                return False
            with contextlib.suppress(Exception):  # the failure is looked at when it has ended
                self.query.awaitTermination(POLL)  # type: ignore[arg-type]
        self.report()
        self.close()
        return True

    def close(self) -> None:
        """Release what the run holds in this process."""
        self._steps.close()

    def ask_to_stop(self) -> None:
        """Finish the epoch that is under way, begin no other. Safe in a signal handler."""
        self._stopping.make()

    def raise_failure(self) -> None:
        """Raise what ended the query, if it did not end well: our own error rather than Spark's report of it."""
        assert self.query is not None
        ended = self.query.exception()
        if self.failure is not None:
            raise self.failure
        if ended is not None and not self._was_refused:
            raise ended

    def _end_if_idle(self) -> None:
        """Stop a query that waits for its next trigger; one that does not is stopped by its next batch."""
        assert self.query is not None
        if not self.query.status["isTriggerActive"]:
            self.query.stop()

    def report(self) -> None:
        """Report every epoch that Spark has finished since the last call, unless another thread is reporting."""
        if self.query is None or not self._reporting.acquire(blocking=False):
            return
        try:
            self._report(self.query)
        finally:
            self._reporting.release()

    def _report(self, query: StreamingQuery) -> None:
        last = query.lastProgress if max(list(self._done), default=-1) > self._reported else None
        if last is None or last["batchId"] <= self._reported:
            return
        for progress in query.recentProgress if last["batchId"] > self._reported + 1 else [last]:
            batch_id = progress["batchId"]
            if batch_id <= self._reported or batch_id not in self._done:
                continue
            steps, is_replay = self._done[batch_id]
            newest = self._coordinator.newest
            self._reported = batch_id
            self._summary = _summary(progress, self._sources)
            for number in [number for number in list(self._done) if number < batch_id]:
                del self._done[number]  # in place: another thread adds to it
            tell(
                EpochReport(
                    pipeline=self._pipeline,
                    epoch=batch_id + 1,
                    lineage=self._lineage,
                    checkpoint_id=newest.checkpoint_id if newest else 0,
                    rows=int(progress["numInputRows"]),
                    rows_per_second=float(progress["processedRowsPerSecond"] or 0.0),
                    seconds=self._summary["seconds"],
                    watermark=newest.watermark if newest else None,
                    lag=self._summary["lag"],
                    steps=steps,
                    sinks=_statuses(newest),
                    checkpoint_bytes=newest.size_bytes if newest else 0,
                    is_replay=is_replay,
                )
            )


def _summary(progress: Any, sources: Sequence[str]) -> dict[str, Any]:
    """What the next checkpoint says of this epoch, so that the store alone can tell how the pipeline fares."""
    return {
        "epoch": progress["batchId"] + 1,
        "rows": int(progress["numInputRows"]),
        "rows_per_second": round(float(progress["processedRowsPerSecond"] or 0.0), 3),
        "seconds": dict(progress["durationMs"]).get("triggerExecution", 0) / 1000,
        "lag": _lag(progress, sources),
    }


def _lag(progress: Any, sources: Sequence[str]) -> dict[str, str]:
    """How far each source says it is behind; most say nothing."""
    found = {}
    for name, source in zip(sources, progress["sources"], strict=False):
        metrics = dict(source["metrics"] or {})
        for key, unit in _LAG_UNITS.items():
            if key in metrics:
                found[name] = f"{metrics[key]} {unit}"
                break
    return found


def _statuses(newest: Any) -> dict[str, str]:
    if newest is None:
        return {}
    return {
        name: status if isinstance(status, str) else f"Failed: {status.reason}"
        for name, status in newest.sink_commit_statuses.items()
    }
