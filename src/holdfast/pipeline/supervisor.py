"""Running a pipeline to its end: the handle of a run, and the supervisor that starts it again where that helps."""

from __future__ import annotations

import logging
import os
import re
import signal

from holdfast.base.stopping import StopRequest, stop_on_signals
from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid, OutcomeUnknown, Unavailable, one_line
from holdfast.pipeline.definition import PipelineDefinition, PreparedPipeline
from holdfast.pipeline.query_run import QueryRun
from holdfast.pipeline.reports import Notice, tell
from holdfast.pipeline.start import preflight, start
from holdfast.pipeline.workdir.workdir import Workdir

log = logging.getLogger("holdfast.spark")
PAUSES = (0.5, 2.0, 8.0, 30.0)
RESTARTS = "HOLDFAST_RESTARTS"
"""Environment variable: how many restarts, unless `run(restarts=…)` says."""

_WORKDIR_TROUBLE = re.compile(
    r"STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
    r"|CANNOT_LOAD_STATE_STORE|STATE_STORE_[A-Z_]*NOT_(?:FOUND|EXIST)|Incomplete log file"
    r"|[Bb]atch \d+ (?:doesn't|does not) exist|CONCURRENT_STREAM_LOG_UPDATE"
    r"|Multiple streaming queries are concurrently using"
    r"|StreamingQueryCheckpointMetadata|MISSING_METADATA|Error reading (?:delta|snapshot) file"
    r"|Failed to read log file|MALFORMED_LOG_FILE|[Bb]atches \(.*\) don't exist"
)
"""How Spark says that its own directory let it down."""

_DAMAGED_FILE = re.compile(
    r"CANNOT_READ_[A-Z_]*|ChecksumException|Checksum error|Stream is corrupted|FileNotFoundException|EOFException"
)
"""How Spark says that a file is not what it should be: one of the workdir's, or one of a source's."""

_PASSING = re.compile(r"ExecutorLostFailure|Lost executor|FetchFailed|SparkContext was shut down .* executor")


class Run:
    """A pipeline that has been started. `stop()` finishes the epoch; `await_termination()` waits and raises."""

    def __init__(self, definition: PipelineDefinition) -> None:
        self._definition = definition
        self._prepared: PreparedPipeline | None = None
        self._query_run: QueryRun | None = None
        self._stop = StopRequest()

    def begin(self) -> None:
        """Preflight once, then recover and start the query. Each call is a run of its own."""
        self._query_run = None
        if self._prepared is None:
            self._prepared = preflight(self._definition)
        try:
            self._query_run = start(self._prepared)
        except Exception as error:
            self._note_failure(error)
            raise
        if self._stop.is_made():
            self._query_run.ask_to_stop()

    @property
    def is_active(self) -> bool:
        """Whether the query is running."""
        query = self._query_run.query if self._query_run else None
        return bool(query and query.isActive)

    @property
    def epochs(self) -> int:
        """How many epochs were finished since the last start."""
        return self._query_run.epochs if self._query_run else 0

    def ask_to_stop(self) -> None:
        """Finish the epoch that is under way, then end. Returns at once; safe in a signal handler."""
        self._stop.make()
        if self._query_run:
            self._query_run.ask_to_stop()

    def stop(self, timeout: float | None = None) -> bool:
        """Finish the epoch that is under way and end; True once it has. Raises what ended the query otherwise."""
        self.ask_to_stop()
        return self.await_termination(timeout)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end of the query; False if `timeout` seconds pass first. Raises what ended it, if not a stop."""
        if self._query_run is None:
            return True
        if not self._query_run.await_end(timeout):
            return False
        try:
            self._query_run.raise_failure()
        except Exception as error:
            self._note_failure(error)
            raise
        return True

    def _note_failure(self, error: Exception) -> None:
        """Let the next start know if the workdir may be to blame. `Fenced` if it is another driver's by now."""
        self._raise_if_fenced(error)
        if self.may_blame_workdir(error):
            self._definition.workdir.mark_suspect(one_line(error))

    def may_blame_workdir(self, error: Exception) -> bool:
        """Whether the next start should restore the workdir.

        After a restore Spark runs the last epoch again, and the source may have dropped its data: Spark told it that
        the epoch is done. So unless Spark complains about its directory, the workdir is blamed only if that epoch has
        to be run anyway.
        """
        if is_workdir_trouble(error, self._definition.workdir):
            return True
        return self.gave_up_early(error) and self._query_run is not None and self._query_run.replays

    def gave_up_early(self, error: Exception) -> bool:
        """Whether Spark ended before its first batch: over its directory, or over a source that does not answer."""
        return self._query_run is not None and not (
            self._query_run.has_come_to_a_batch or isinstance(error, HoldfastError)
        )

    def _raise_if_fenced(self, error: Exception) -> None:
        """Another driver at work shows in many ways. Starting again would only take the pipeline back from it."""
        try:
            self._definition.store.check_lease()
        except Fenced as fenced:
            raise fenced from error
        except HoldfastError:
            return  # the store cannot be asked now; what ended the query is still true


class Supervisor:
    """Runs a pipeline, and again where a failure may pass by itself, a bounded number of times."""

    def __init__(self, definition: PipelineDefinition, *, restarts: int) -> None:
        self._definition = definition
        self._restarts = restarts
        self._run = self.handle = Run(definition)
        self._stopped = StopRequest()

    def run(self) -> None:
        """Until the query ends or is asked to stop. Raises what could not be helped by starting again."""
        failures = 0
        with stop_on_signals(self._ask_to_stop):
            while True:
                try:
                    self._run.begin()
                    self._run.await_termination()
                    return
                except Exception as error:
                    failures = failures + 1 if self._run.epochs == 0 else 1
                    run = self._run
                    may_help = is_passing(error) or run.gave_up_early(error) or run.may_blame_workdir(error)
                    if self._stopped.is_made() or failures > self._restarts or not may_help:
                        raise
                    self._pause(failures, error)
                    if self._stopped.is_made():
                        return

    def _pause(self, failures: int, error: Exception) -> None:
        seconds = PAUSES[min(failures, len(PAUSES)) - 1]
        reason = error.message if isinstance(error, HoldfastError) else one_line(error)
        text = f"starting again in {seconds:g} s ({failures} of {self._restarts}): {reason}"
        log.warning("%s: %s", self._definition.name, text, extra={"is_told": True})
        tell(Notice(self._definition.name, text, "warning"))
        self._stopped.wait(seconds)

    def _ask_to_stop(self, number: signal.Signals) -> None:
        """Ctrl-C and SIGTERM ask the run to stop; a second Ctrl-C ends it at once."""
        if self._stopped.is_made() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stopped.make()
        self._run.ask_to_stop()
        tell(Notice(self._definition.name, f"{number.name}: finishing the epoch; Ctrl-C again ends at once"))


def restarts_by_default() -> int:
    """The default number of restarts: HOLDFAST_RESTARTS, or 3."""
    text = os.environ.get(RESTARTS) or "3"
    if not text.isascii() or not text.isdigit():
        raise Invalid(f"{RESTARTS} is a whole number from 0, not {text!r}.", code="pipeline.restarts", about=RESTARTS)
    return int(text)


def is_passing(error: BaseException) -> bool:
    """Whether starting again may help by itself."""
    if isinstance(error, Fenced):
        return False
    return isinstance(error, Unavailable | Conflict | OutcomeUnknown) or bool(_PASSING.search(_texts(error)))


def is_workdir_trouble(error: BaseException, workdir: Workdir) -> bool:
    """Whether Spark stumbled over its own directory, so that a rebuilt one may help."""
    if isinstance(error, Fenced):
        return False
    if getattr(error, "code", "") in ("workdir.incomplete", "workdir.log"):
        return True
    said = _texts(error)
    names_it = f"{workdir.home}/" in said or f"{workdir.home.parent}/.{workdir.home.name}.spark-" in said
    return bool(_WORKDIR_TROUBLE.search(said)) or (names_it and bool(_DAMAGED_FILE.search(said)))


def _texts(error: BaseException) -> str:
    """Everything that a chain of causes says."""
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(texts) < 20:
        texts.append(str(seen))
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)
