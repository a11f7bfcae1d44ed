"""One run of Spark's query: the `foreachBatch` callback, its end, and progress reports."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.base.jvm import changed_settings, is_one_process, stop_query
from holdfast.base.stop_request import StopRequest
from holdfast.errors import Fenced, HoldfastError, Invalid, code_of, one_line
from holdfast.pipeline.dead_letters import RefusedCount
from holdfast.pipeline.definition import PreparedPipeline
from holdfast.pipeline.epoch import EpochCoordinator, ReplayedEpoch
from holdfast.pipeline.epoch_log import log_epoch
from holdfast.pipeline.epoch_manifest import EpochFacts, read_epoch_facts
from holdfast.pipeline.frame_cache import FrameCache
from holdfast.pipeline.heartbeat import End, HeartbeatThread
from holdfast.pipeline.reports import EpochReport, StepClock, tell
from holdfast.pipeline.workdir.file_manager import quick_settings
from holdfast.pipeline.workdir.workdir import SPOOL, Workdir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("holdfast.spark")
POLL = 0.1
PATIENCE = 10.0
"""Seconds in which Spark stops a query whose batch is refused."""
_LAG_UNITS = {"maxOffsetsBehindLatest": "offsets", "numFilesOutstanding": "files", "numBytesOutstanding": "bytes"}


class StopRequested(Exception):
    """Refuses a batch that comes after a request to stop. It ends the query; nothing of the batch was begun.

    In a stopped query Spark takes a Python error with these words for the interruption by `query.stop()`, a good end.
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException")


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
        heartbeat: HeartbeatThread,
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
            directory=workdir.directory,
            name=f"{SPOOL}-{generation}",
        )
        self._state_may_differ = bool(prepared.description.state) and not query.is_deterministic
        self._lineage = lineage
        self.replays = replays
        """Whether Spark begins with an epoch that was decided before."""
        self.has_called_back = False
        """Whether Spark has called `run_batch` at all. If not, it may have failed on its directory."""
        self._has_cleared_suspicion = False
        self._query_id: str | None = None
        self._stopping = StopRequest()
        self._heartbeat = heartbeat
        self._steps = StepClock()
        self._done: dict[int, tuple[dict[str, float], bool, RefusedCount]] = {}
        self._reporting = threading.Lock()
        self._reported = -1
        self._has_failed_to_report = False
        self._summary: dict[str, Any] = {}
        self._has_started = threading.Event()
        self._has_refused_batch = False
        self._has_left_stamps = False
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
            .option("checkpointLocation", self._workdir.directory.address)
            .queryName(definition.name)
        )
        try:
            if definition.trigger:
                writer = writer.trigger(**definition.trigger)
            session = frame.sparkSession
            with changed_settings(session, quick_settings(self._workdir, session, may_differ=self._state_may_differ)):
                self.query = writer.start()
            self._heartbeat.follow(self._end)
            self._has_started.set()
        except Exception as error:
            raise Invalid(
                f"Spark does not run this query: {one_line(error)}",
                code="pipeline.refused-by-spark",
                about=f"pipeline {definition.name!r}",
                unchanged="every checkpoint and every sink",
                next_step="change the query, its output mode or its trigger",
            ) from error

    def run_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Spark's callback for each batch. Returns only once every sink has the epoch."""
        self.has_called_back = True
        self.report()  # the epoch before, if no thread is in `await_end`
        if self._stopping.is_made():
            self._refuse_batch()
        try:
            self._steps.taken()
            with self._steps.running():
                facts = self._read_facts(batch_id)
                epoch = self._coordinator.classify(facts.epoch)
                with self._frame_cache.hold(frame) as held:
                    refused = self._coordinator.run(epoch, held, facts)
            self._clear_suspicion()
            is_replay = isinstance(epoch, ReplayedEpoch)
            self._done[batch_id] = (self._steps.taken(), is_replay, refused)
            self.epochs += not is_replay
        except BaseException as error:
            self.failure = error
            raise

    def _refuse_batch(self) -> NoReturn:
        """End the query in a batch that is not begun; the next start finds it planned and runs it.

        The query is stopped first: only of one that is not stopped would Spark log an error, with all its frames.
        """
        self._has_refused_batch = True
        threading.Thread(target=self._stop_query, name="holdfast-stop", daemon=True).start()
        deadline = time.monotonic() + PATIENCE
        while (self.query is None or self.query.isActive) and time.monotonic() < deadline:
            time.sleep(POLL / 10)
        raise StopRequested

    def _stop_query(self) -> None:
        """Stop the query. Returns after its end, so never call it in a batch itself."""
        if self._has_started.wait(PATIENCE) and self.query is not None:
            with contextlib.suppress(Exception):  # the batch ends by `StopRequested` in any case
                stop_query(self._prepared.definition.frame.sparkSession, self.query)

    def _clear_suspicion(self) -> None:
        """Once an epoch has gone through, an earlier failure is no reason any more to doubt the workdir."""
        if not self._has_cleared_suspicion:
            self._has_cleared_suspicion = True
            self._workdir.clear_suspicion()

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
            if self._heartbeat.fenced is not None and self._end_if_idle():
                self.failure = self.failure or self._heartbeat.fenced
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._await_termination(POLL)
        # One that is being stopped is not active any more, and not yet at its end.
        has_ended = self._await_termination(PATIENCE)
        self.report()
        has_failed = self.failure is not None or (self.query.exception() is not None and not self._has_refused_batch)
        self._leave_stamps(is_clean=has_ended and not has_failed)
        self._heartbeat.stop()
        return True

    def _leave_stamps(self, *, is_clean: bool) -> None:
        """Leave the workdir's stamps for the next start. Never raises: the query's outcome stands, whatever fails here.

        Only once: later the workdir may be a successor's. Without stamps the next start compares bytes.
        """
        if self._has_left_stamps:
            return
        self._has_left_stamps = True
        try:
            self._coordinator.leave_stamps(is_clean=is_clean)
        except Fenced:
            pass  # the workdir is the successor's; the failure of this run says so
        except Exception as error:
            text = "the workdir's stamps could not be written, so the next start takes longer"
            why = error.message if isinstance(error, HoldfastError) else one_line(error, kind=True)
            log.warning("%s: %s: %s", self._pipeline, text, why)

    def _await_termination(self, seconds: float) -> bool:
        """Whether the query has come to its end, well or not."""
        assert self.query is not None
        try:
            return bool(self.query.awaitTermination(seconds))  # type: ignore[arg-type]
        except Exception:  # `raise_failure` raises it after the end
            return True

    def ask_to_stop(self) -> None:
        """Finish the epoch that is under way, begin no other. Safe in a signal handler."""
        self._stopping.make()

    def raise_failure(self) -> None:
        """Raise what ended the query, if it did not end well: our own error rather than Spark's report of it."""
        assert self.query is not None
        ended = self.query.exception()
        if self.failure is not None:
            raise self.failure
        if ended is not None and not self._has_refused_batch:
            raise ended

    def _end(self) -> End:
        """How the query ended, if it has; for the heartbeat."""
        assert self.query is not None
        if self.query.isActive:
            return "running", None
        failure = self.failure or (None if self._has_refused_batch else self.query.exception())
        return ("stopped", None) if failure is None else ("failed", code_of(failure))

    def _end_if_idle(self) -> bool:
        """Stop a query that waits for its next trigger. A query with a batch under way stops at its next batch."""
        assert self.query is not None
        is_idle = not self.query.status["isTriggerActive"]
        if is_idle:
            self._stop_query()
        return is_idle

    def report(self) -> None:
        """Report every epoch that Spark has finished since the last call, unless another thread is reporting.

        Never raises: a report that cannot be made is missing, and the epoch is what it is. The first is logged.
        """
        if self.query is None or not self._reporting.acquire(blocking=False):
            return
        try:
            self._report(self.query)
        except Exception:
            if not self._has_failed_to_report:
                self._has_failed_to_report = True
                log.warning("%s: an epoch could not be reported", self._pipeline, exc_info=True)
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
            steps, is_replay, refused = self._done[batch_id]
            newest = self._coordinator.newest
            self._reported = batch_id
            self._summary = _summary(progress, self._sources)
            for number in [number for number in list(self._done) if number < batch_id]:
                del self._done[number]  # in place: another thread adds to it
            self._tell(
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
                    refused=refused.read(),
                )
            )

    def _tell(self, report: EpochReport) -> None:
        log_epoch(report)
        tell(report)
        self._prepared.definition.on_epoch.tell(report)


def _summary(progress: Any, sources: Sequence[str]) -> dict[str, Any]:
    """The summary of this epoch in the next checkpoint, so that a status can be shown from the store alone."""
    return {
        "epoch": progress["batchId"] + 1,
        "rows": int(progress["numInputRows"]),
        "rows_per_second": round(float(progress["processedRowsPerSecond"] or 0.0), 3),
        "seconds": dict(progress["durationMs"]).get("triggerExecution", 0) / 1000,
        "lag": _lag(progress, sources),
    }


def _lag(progress: Any, sources: Sequence[str]) -> dict[str, str]:
    """How far each source is behind, where it reports that; most do not."""
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
