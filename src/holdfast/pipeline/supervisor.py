"""Running a pipeline to its end: the handle of a run, and the supervisor that starts it again where that may help."""

from __future__ import annotations

import logging
import os
import re
import signal

from holdfast.base.interrupts import quiet_interrupts
from holdfast.base.stop_request import StopRequest, stop_on_signals
from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid, OutcomeUnknown, Unavailable, one_line
from holdfast.pipeline.definition import PipelineDefinition, PreparedPipeline
from holdfast.pipeline.epoch_log import print_now, show_on_stderr
from holdfast.pipeline.failures import explained, is_permanent
from holdfast.pipeline.query_run import QueryRun
from holdfast.pipeline.reports import Notice, tell
from holdfast.pipeline.start import preflight, start
from holdfast.pipeline.workdir.workdir import Workdir

log = logging.getLogger("holdfast.spark")
quiet_interrupts()  # here, because Spark is started after the import and before a pipeline is made
PAUSES = (0.5, 2.0, 8.0, 30.0)
RESTARTS = "HOLDFAST_RESTARTS"
"""Environment variable: how many restarts, unless `run(restarts=...)` is given."""

VERIFY = "HOLDFAST_VERIFY"
"""Environment variable: 1 for starts that read every byte, unless `verify=...` is given to `run` or `start`."""

_WORKDIR_TROUBLE = re.compile(
    r"STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
    r"|CANNOT_LOAD_STATE_STORE|STATE_STORE_[A-Z_]*NOT_(?:FOUND|EXIST)|Incomplete log file"
    r"|[Bb]atch \d+ (?:doesn't|does not) exist|CONCURRENT_STREAM_LOG_UPDATE"
    r"|Multiple streaming queries are concurrently using"
    r"|StreamingQueryCheckpointMetadata|MISSING_METADATA|Error reading (?:delta|snapshot) file"
    r"|Failed to read log file|MALFORMED_LOG_FILE|[Bb]atches \(.*\) don't exist"
)
"""Spark's errors about its own directory."""

_DAMAGED_FILE = re.compile(
    r"CANNOT_READ_[A-Z_]*|ChecksumException|Checksum error|Stream is corrupted|FileNotFoundException|EOFException"
)
"""Spark's errors about a damaged or missing file, which may belong to the workdir or to a source."""

_PASSING = re.compile(r"ExecutorLostFailure|Lost executor|FetchFailed|SparkContext was shut down .* executor")


class Run:
    """A pipeline that has been started. `stop()` finishes the epoch; `await_termination()` waits and raises."""

    def __init__(self, definition: PipelineDefinition) -> None:
        self._definition = definition
        self._prepared: PreparedPipeline | None = None
        self._query_run: QueryRun | None = None
        self._stop = StopRequest()

    def __repr__(self) -> str:
        return f"Run({self._definition.name!r}, {self.state}, {self.epochs} epoch{'' if self.epochs == 1 else 's'})"

    @property
    def state(self) -> str:
        """`not started`, `running` or `ended`; `unknown` if Spark cannot be asked any more."""
        if self._query_run is None:
            return "not started"
        try:
            return "running" if self.is_active else "ended"
        except Exception:  # the JVM is gone, and a repr must not raise
            return "unknown"

    def begin(self) -> None:
        """Preflight once, then recover and start the query. Each call is a run of its own."""
        show_on_stderr()
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
            told = explained(error)
            if told is None:
                raise
            raise told from error
        if not self._stop.is_made() and not self._definition.trigger.keys() & {"availableNow", "once"}:
            # Spark stops a query without a word when another driver in the same JVM starts it.
            self._raise_if_fenced(None)
        return True

    def _note_failure(self, error: Exception) -> None:
        """Mark the workdir for the next start if it may be to blame. `Fenced` if another driver has taken over."""
        self._raise_if_fenced(error)
        if self.may_blame_workdir(error):
            self._definition.workdir.mark_suspect(one_line(error))

    def may_blame_workdir(self, error: Exception) -> bool:
        """Whether the next start should restore the workdir.

        After a restore Spark runs the last epoch again, and the source may have dropped its data: Spark told it that
        the epoch is done. So unless Spark complains about its directory, the workdir is blamed only if that epoch has
        to be run anyway.
        """
        if is_permanent(error):
            return False
        if is_workdir_trouble(error, self._definition.workdir):
            return True
        return self.gave_up_early(error) and self._query_run is not None and self._query_run.replays

    def gave_up_early(self, error: Exception) -> bool:
        """Whether Spark failed before its first batch: on its directory, or on a source that does not answer."""
        return self._query_run is not None and not (self._query_run.has_called_back or isinstance(error, HoldfastError))

    def _raise_if_fenced(self, error: Exception | None) -> None:
        """`Fenced` if another driver has taken over, which may cause any error: starting again would take it back."""
        try:
            self._definition.store.check_lease()
        except Fenced as fenced:
            raise fenced from error
        except HoldfastError:
            return  # the store cannot be asked now: report the failure itself


class Supervisor:
    """Runs a pipeline, and again where a failure may pass by itself, a bounded number of times."""

    def __init__(self, definition: PipelineDefinition, *, restarts: int) -> None:
        self._definition = definition
        self._restarts = restarts
        self._run = self.handle = Run(definition)
        self._stopped = StopRequest()

    def run(self) -> None:
        """Run until the query ends or is asked to stop. Raises a failure that starting again did not help."""
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
                    is_bad_luck = is_passing(error) or run.gave_up_early(error) or run.may_blame_workdir(error)
                    may_help = is_bad_luck and not is_permanent(error)
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
        text = f"{number.name}: finishing the epoch; Ctrl-C again ends at once"
        print_now(f"{self._definition.name}: {text}")
        tell(Notice(self._definition.name, text))


def restarts_by_default() -> int:
    """The default number of restarts: HOLDFAST_RESTARTS, or 3."""
    text = os.environ.get(RESTARTS) or "3"
    if not text.isascii() or not text.isdigit():
        raise Invalid(f"{RESTARTS} is a whole number from 0, not {text!r}.", code="pipeline.restarts", about=RESTARTS)
    return int(text)


def verifies_by_default() -> bool:
    """Whether starts read every byte by default: HOLDFAST_VERIFY is 1."""
    text = os.environ.get(VERIFY) or "0"
    if text not in ("0", "1"):
        raise Invalid(f"{VERIFY} is 0 or 1, not {text!r}.", code="pipeline.verify", about=VERIFY)
    return text == "1"


def is_passing(error: BaseException) -> bool:
    """Whether a failure may pass by itself, so that starting again may help."""
    if isinstance(error, Fenced):
        return False
    return isinstance(error, Unavailable | Conflict | OutcomeUnknown) or bool(_PASSING.search(_texts(error)))


def is_workdir_trouble(error: BaseException, workdir: Workdir) -> bool:
    """Whether Spark failed on its own directory, so that a rebuilt one may help."""
    if isinstance(error, Fenced):
        return False
    if getattr(error, "code", "") in ("workdir.incomplete", "workdir.log"):
        return True
    said = _texts(error)
    return bool(_WORKDIR_TROUBLE.search(said)) or (workdir.is_named_in(said) and bool(_DAMAGED_FILE.search(said)))


def _texts(error: BaseException) -> str:
    """The messages of an error and of its causes."""
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(texts) < 20:
        texts.append(str(seen))
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)
