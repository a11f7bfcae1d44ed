"""A pipeline: ordinary PySpark between named sources and named sinks, every epoch delivered exactly once.

pipeline = Pipeline("orders", checkpoints="file:///data/orders")
orders = pipeline.source("orders", spark.readStream.format("kafka")...load())
pipeline.sink("lake", DeltaSink("/lake/revenue"))
pipeline.run(revenue, output_mode="update", trigger={"processingTime": "5 seconds"})
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.addresses import HDFS_SCHEME, as_file_name, is_cloud, is_local, local_path, scheme_of, state_home
from holdfast.base.jvm import active_session, is_one_process
from holdfast.checkpoints import CheckpointStore, open_store
from holdfast.errors import Invalid
from holdfast.pipeline.dead_letters import DEAD_LETTERS, DeadLetterFiles, DeadLetterSink, check_on_refused
from holdfast.pipeline.definition import NamedSink, OnRefused, Operator, PipelineDefinition, ReferenceTable
from holdfast.pipeline.query.plan import check_frame
from holdfast.pipeline.recovery_plan import OnChange
from holdfast.pipeline.reference_table import pin_table
from holdfast.pipeline.reports import EpochReport, Listeners
from holdfast.pipeline.supervisor import Run, Supervisor, restarts_by_default, verifies_by_default
from holdfast.pipeline.trigger import read_trigger
from holdfast.pipeline.workdir.open import open_workdir
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sinks import Sink
from holdfast.storage.objects.spark_access import Access, spark_access

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[^\x00-\x1f/\\]{1,200}")


class Pipeline:
    """One streaming query with its sources, reference tables, operators and sinks.

    `checkpoints` is a store's address or an opened store, which belongs to this pipeline alone. `workdir` is Spark's
    own directory, expendable: a path that all executors see, or an address that Spark has a connector for (`s3a://`,
    `abfss://`, `gs://`, `hdfs://`). By default it lies beside the checkpoints; on one machine with checkpoints on
    object storage, under the user's state directory, which is faster. `options` are the object store's settings, by
    default those of Spark (`spark.hadoop.fs.s3a...`) or the environment's. `max_retained` is how many checkpoints the
    store keeps, and `keep` for how long besides ("7d", see `open_store`), for a store that is given by its address.

    `on_change` says what to do when the query or the sinks differ from those in the newest checkpoint: "fail", "accept"
    (go on from the same state, if Spark can) or "reset" (begin again under a new lineage; the sinks keep what they
    have). Rate limits, brokers, credentials, the trigger and a new version of Spark are no difference. Remove "reset"
    once it has done its work: any later change would begin again.
    """

    def __init__(
        self,
        name: str,
        *,
        checkpoints: str | os.PathLike[str] | CheckpointStore,
        workdir: str | os.PathLike[str] | None = None,
        on_change: OnChange = "fail",
        options: Mapping[str, str] | None = None,
        max_retained: int | None = 3,
        keep: str | timedelta | None = None,
    ) -> None:
        self.name = _checked_name("pipeline", name)
        if on_change not in ("fail", "accept", "reset"):
            raise Invalid(f"on_change is 'fail', 'accept' or 'reset', not {on_change!r}.", code="pipeline.on-change")
        self._on_change: OnChange = on_change
        self._anew_after = 0
        self.accepts_loss = True
        """Whether on_change="accept" also goes on without epochs that a sink has lost."""
        self._options = options
        self._is_own_store = not isinstance(checkpoints, CheckpointStore)
        if isinstance(checkpoints, CheckpointStore):
            self._store = checkpoints
            self._address = checkpoints.objects.address
        else:  # refuses an invalid address; reads and writes nothing yet
            self._address = os.fspath(checkpoints)
            self._retention: dict[str, Any] = {"max_retained": max_retained, "keep": keep}
            self._store = self._open_store(active_session())
        self._run: Run | None = None
        self._has_chosen_workdir = workdir is not None
        place = workdir if workdir is not None else _default_workdir(self._address, name)
        self.workdir: Workdir = open_workdir(place, options=options)
        self._sources: dict[str, DataFrame] = {}
        self._tables: dict[str, ReferenceTable] = {}
        self._operators: dict[str, Operator] = {}
        self._sinks: dict[str, NamedSink] = {}
        self._on_epoch: Listeners[EpochReport] = Listeners(f"a listener of pipeline {name!r}")
        self._dead_letters: Sink | None = None

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, sources={[*self._sources]}, sinks={[*self._sinks]}, {self.state})"

    @property
    def state(self) -> str:
        """The state of its last run: `not started`, `running` or `ended`."""
        return self._run.state if self._run else "not started"

    def source(self, name: str, frame: DataFrame) -> DataFrame:
        """Name a stream; returns it unchanged. Offsets are recorded under this name."""
        self._new(name, "source", self._sources)
        check_frame(frame)
        self._sources[name] = frame
        return frame

    def table(
        self, name: str, reader: Callable[[str], DataFrame], *, version: str | int | Callable[[], str | int]
    ) -> DataFrame:
        """A reference table, read by `reader(version)` at one version for the whole run.

        `version` is the version to read, or a function that returns the newest one and is called once: to see a newer
        version, start again. The reader gets it as text. It is recorded with every epoch. A start that has to run an
        epoch again reads the version recorded with that epoch; the start after that reads the newest one.
        """
        self._new(name, "table", self._tables)
        self._choose_workdir(active_session())
        pinned = pin_table(name, version, self._store, self.workdir)
        self._tables[name] = pinned
        return reader(pinned.version)

    def operator(self, name: str, operator: Operator) -> Operator:
        """Let an object on the driver take part in every checkpoint: `snapshot() -> bytes`, `restore(bytes)`.

        Returns the object. In every epoch its snapshot is taken after the sinks' views have seen that epoch's frame; at
        every start it is restored. So feed it in a view: a `FunctionSink` is called after the snapshot, and data fed
        there would be missing after a restart.
        """
        self._new(name, "operator", self._operators)
        for method in ("snapshot", "restore"):
            if not callable(getattr(operator, method, None)):
                raise Invalid(
                    f"Operator {name!r} has no method {method}.",
                    code="pipeline.operator",
                    next_step="give it snapshot() -> bytes and restore(state: bytes)",
                )
        self._operators[name] = operator
        return operator

    def sink(
        self,
        name: str,
        sink: Sink,
        *,
        view: Callable[[DataFrame], DataFrame] | None = None,
        on_refused: OnRefused = "stop",
    ) -> None:
        """Add a sink. `view` derives its rows from the epoch's frame; without a view it gets the frame itself.

        `on_refused` says what becomes of rows that the sink refuses: "stop" fails the epoch before any of it is
        visible; "dead-letter" delivers the others and puts these, with the reason, into the pipeline's dead letters, in
        the same epoch and exactly once. That is for refusals that a sink can tell row by row, such as a null key or a
        text that is too long (see `RefusesRows`), and for repeated keys in an index (`RefusesRowsTogether`); any other
        fails the epoch all the same.
        """
        self._new(name, "sink", self._sinks)
        _check_sink(name, sink)
        check_on_refused(name, sink, on_refused)
        self._sinks[name] = NamedSink(name, sink, view, on_refused)

    def dead_letters(self, sink: Sink) -> None:
        """Name the sink for rows that sinks with `on_refused="dead-letter"` refuse.

        It gets the columns sink, epoch, lineage, reason, row (the row as JSON text) and at, and is called
        "dead-letters" in checkpoints. Without this call it is a `FileSink` of JSON files in `dead-letters` beside the
        checkpoints; if those are in memory or at `az://`, a start is refused.
        """
        if self._dead_letters is not None:
            raise Invalid(
                f"Pipeline {self.name!r} has a sink for dead letters already.",
                code="pipeline.dead-letters",
                about=f"pipeline {self.name!r}",
                next_step="call dead_letters once: all sinks of a pipeline share it",
            )
        _check_sink(DEAD_LETTERS, sink)
        self._dead_letters = sink

    def on_epoch(self, function: Callable[[EpochReport], object]) -> Callable[[EpochReport], object]:
        """Call `function` with an `EpochReport` after each epoch; returns it, so that this can be a decorator.

        It is called between two epochs, or while the next one runs, in the thread that waits for the end or in one of
        Spark's. A slow function may delay the next epoch. One that raises fails no epoch: its first exception is
        logged. The same report is logged as one line, by the logger `holdfast.epochs` at level INFO.
        """
        self._on_epoch.add(function)
        return function

    def run(
        self,
        frame: DataFrame,
        *,
        output_mode: str = "append",
        trigger: str | Mapping[str, Any] | None = None,
        restarts: int | None = None,
        verify: bool | None = None,
        **spark_trigger: Any,
    ) -> None:
        """Run until the query ends by itself or is asked to stop; Ctrl-C and SIGTERM finish the epoch and return.

        `trigger` is a length of time, "5 seconds", or what Spark's `trigger` takes, {"availableNow": True}; Spark's own
        spelling, availableNow=True, does as well. Without one an epoch follows the other.

        After a failure that may pass by itself (a store or a sink that cannot be reached, a damaged workdir) it starts
        again, at most `restarts` times without an epoch in between (by default HOLDFAST_RESTARTS from the environment,
        or 3). Every other failure is raised, at once: what is denied, missing or at odds with the query stays so.

        A start reads no state if nothing has changed since a clean end. With `verify` (by default HOLDFAST_VERIFY from
        the environment) every start compares the newest checkpoint with the workdir byte by byte.
        """
        allowed = restarts_by_default() if restarts is None else restarts
        chosen = read_trigger(trigger, spark_trigger)
        supervisor = Supervisor(self._definition(frame, output_mode, chosen, verify), restarts=allowed)
        self._run = supervisor.handle
        supervisor.run()

    def start(
        self,
        frame: DataFrame,
        *,
        output_mode: str = "append",
        trigger: str | Mapping[str, Any] | None = None,
        verify: bool | None = None,
        **spark_trigger: Any,
    ) -> Run:
        """Recover, start the query and return a handle with `stop()` and `await_termination()`.

        Triggers and `verify` are given as for `run`.
        """
        self._run = run = Run(self._definition(frame, output_mode, read_trigger(trigger, spark_trigger), verify))
        run.begin()
        return run

    def _definition(
        self, frame: DataFrame, output_mode: str, trigger: dict[str, Any], verify: bool | None
    ) -> PipelineDefinition:
        check_frame(frame)
        if self._run is not None and self._run.is_active:
            raise Invalid(
                f"Pipeline {self.name!r} is running already.",
                code="pipeline.running",
                about=f"pipeline {self.name!r}",
                unchanged="everything; it runs on",
                next_step="stop() it first; to let another driver take it over, make a Pipeline of its own",
            )
        if not self._sinks:
            raise Invalid(
                f"Pipeline {self.name!r} has no sink.",
                code="pipeline.no-sinks",
                about=f"pipeline {self.name!r}",
                next_step="add one with pipeline.sink(name, ...)",
            )
        if output_mode not in ("append", "update", "complete"):
            raise Invalid(
                f"output_mode is 'append', 'update' or 'complete', not {output_mode!r}.", code="pipeline.output-mode"
            )
        spark = frame.sparkSession
        access = self._access(spark)
        self._choose_workdir(spark)
        return PipelineDefinition(
            name=self.name,
            frame=frame,
            output_mode=output_mode,
            trigger=trigger,
            store=self._store,
            access=access,
            workdir=self.workdir,
            sources=dict(self._sources),
            tables=dict(self._tables),
            operators=dict(self._operators),
            sinks=self._all_sinks(),
            on_change=self._on_change,
            on_epoch=self._on_epoch,
            accepts_loss=self.accepts_loss,
            anew_after=self._anew_after,
            verify=verifies_by_default() if verify is None else verify,
        )

    def start_over(self) -> None:
        """Let the next start begin again, under a new lineage and with an empty workdir, and resume from no checkpoint.

        Only for sinks that are emptied as well; any other would get every row a second time. `Fenced` if another
        driver has taken over.
        """
        self._store.check_lease()
        self._anew_after = max(self._store.list_ids(), default=0)
        self.workdir.discard(self._store.check_lease)

    @property
    def sinks(self) -> dict[str, Sink]:
        """Every sink by its name."""
        return {name: named.sink for name, named in self._sinks.items()}

    def _all_sinks(self) -> dict[str, NamedSink]:
        """The sinks, and the one for dead letters at the end if a sink has use for it."""
        if all(named.on_refused == "stop" for named in self._sinks.values()):
            return dict(self._sinks)
        if DEAD_LETTERS in self._sinks:
            raise Invalid(
                f"Pipeline {self.name!r} has a sink called {DEAD_LETTERS!r}, which is the name of the one for refused "
                "rows.",
                code="pipeline.dead-letters",
                about=f"sink {DEAD_LETTERS!r}",
                unchanged="everything",
                next_step="give it another name; or declare it with pipeline.dead_letters(sink) instead",
            )
        sink = self._dead_letters
        if sink is None:
            if scheme_of(self._address) in ("memory", "az"):  # a FileSink can write to every other kind of store
                raise Invalid(
                    f"There is no place for dead letters beside checkpoints on {scheme_of(self._address)}://.",
                    code="pipeline.dead-letters",
                    about=f"pipeline {self.name!r}",
                    unchanged="everything",
                    next_step="name a sink for them with pipeline.dead_letters(sink)",
                )
            if is_local(self._address):
                sink = DeadLetterFiles(local_path(self._address))
            else:
                sink = DeadLetterFiles(self._address, self._options or None)
        return {**self._sinks, DEAD_LETTERS: DeadLetterSink(sink)}

    def _choose_workdir(self, spark: SparkSession | None) -> None:
        """On a cluster the default is beside the checkpoints, unless those are on a disk."""
        if self._has_chosen_workdir or spark is None or is_local(self._address) or is_one_process(spark):
            return
        self.workdir = open_workdir(f"{self._address.rstrip('/')}/workdir", options=self._options)

    def _open_store(self, spark: SparkSession | None) -> CheckpointStore:
        self._has_spark_access = spark is not None
        options = dict(self._options) if self._options else None
        access = spark_access(spark, self._address, options) if spark else Access(self._address, options)
        return open_store(self._address, options=access.options, credentials=access.credentials, **self._retention)

    def _access(self, spark: SparkSession) -> Access | None:
        """None for a store in memory, and for one that was passed in opened: its settings are not known here.

        A pipeline that was made before the session opens its store again, with what Spark's settings say.
        """
        is_remote = is_cloud(self._address) or scheme_of(self._address) == HDFS_SCHEME
        if self._is_own_store and not self._has_spark_access and is_remote:
            self._store = self._open_store(spark)
        is_known = self._is_own_store or self._options is not None or is_local(self._address)
        if not is_known or self._address.startswith("memory:"):
            return None
        return spark_access(spark, self._address, self._options)

    def _new(self, name: str, kind: str, there: Mapping[str, object]) -> None:
        _checked_name(kind, name)
        if name in there:
            raise Invalid(
                f"Pipeline {self.name!r} has a {kind} called {name!r} already.",
                code=f"pipeline.{kind}-twice",
                about=f"{kind} {name!r}",
                next_step="give each its own name",
            )


def _checked_name(kind: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot name a {kind}: up to 200 characters without slashes and control characters.",
            code="pipeline.name",
        )
    return name


def _check_sink(name: str, sink: Any) -> None:
    if isinstance(sink, type) or not isinstance(sink, Sink):
        raise Invalid(
            f"Sink {name!r} is a {getattr(sink, '__name__', type(sink).__name__)}, which cannot stage and commit.",
            code="pipeline.sink",
            next_step="use one from holdfast.sinks; FunctionSink(function) takes any function of a DataFrame",
        )


def _default_workdir(address: str, name: str) -> Path:
    if is_local(address):
        return Path(local_path(address)) / "workdir"
    return state_home("workdirs", f"{name}-{as_file_name(address)}")
