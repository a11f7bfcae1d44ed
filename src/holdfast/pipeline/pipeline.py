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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.addresses import without_secrets
from holdfast.checkpoints import CheckpointStore, open_store
from holdfast.errors import Invalid
from holdfast.pipeline.epoch import NamedSink, Operator
from holdfast.pipeline.query_plan import check_frame
from holdfast.pipeline.recovery_plan import OnChange
from holdfast.pipeline.reference_table import ReferenceTable, pin_table
from holdfast.pipeline.start import Definition
from holdfast.pipeline.supervisor import Run, Supervision, restarts_by_default
from holdfast.pipeline.workdir.pack import Reopening, is_one_process
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRIGGERS = {"processingTime", "once", "availableNow"}
_NAME = re.compile(r"[^\x00-\x1f/\\]{1,200}")


class Pipeline:
    """One streaming query with its sources, reference tables, operators and sinks.

    `checkpoints` is a store's address or an opened store, which belongs to this pipeline alone. `workdir` is Spark's
    own directory, expendable, on a disk that all executors see; by default it lies beside the checkpoints, or under the
    user's state directory if they are on object storage. `options` are the object store's settings, and `max_retained`
    is how many checkpoints it keeps, both for a store that is given by its address.

    `on_change` says what to do when the query or the sinks are not what the newest checkpoint knows: "fail", "accept"
    (go on from the same state) or "reset" (begin again under a new lineage; the sinks keep what they have). Remove
    "reset" once it has done its work: any later change, also of how Spark writes a plan down, would begin again.
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
    ) -> None:
        self.name = _checked_name("pipeline", name)
        if on_change not in ("fail", "accept", "reset"):
            raise Invalid(f"on_change is 'fail', 'accept' or 'reset', not {on_change!r}.", code="pipeline.on-change")
        self._on_change: OnChange = on_change
        self._anew_after = 0
        self.accepts_loss = True
        """Whether on_change="accept" also goes on without what a sink has lost."""
        self._options = options
        self._is_own_store = not isinstance(checkpoints, CheckpointStore)
        if isinstance(checkpoints, CheckpointStore):
            self._store = checkpoints
            self._address = checkpoints.objects.address
        else:  # opening refuses an address that means nothing, and touches nothing
            self._store = open_store(checkpoints, options=options, max_retained=max_retained)
            self._address = os.fspath(checkpoints)
        self._run: Run | None = None
        self._has_chosen_workdir = workdir is not None
        self.workdir = Workdir(workdir if workdir is not None else _default_workdir(self._address, name))
        self._sources: dict[str, DataFrame] = {}
        self._tables: dict[str, ReferenceTable] = {}
        self._operators: dict[str, Operator] = {}
        self._sinks: dict[str, NamedSink] = {}

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self._sources)} sources, {len(self._sinks)} sinks)"

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

        `version` is the version to read, or a function that finds out the newest, called once: to
        see a newer one, start again. The reader gets it as text. It is recorded with every epoch. A start that has to
        run an epoch again reads the version that this epoch was run with, and the newest one at the start after that.
        """
        self._new(name, "table", self._tables)
        pinned = pin_table(name, version, self._store, self.workdir)
        self._tables[name] = pinned
        return reader(pinned.version)

    def operator(self, name: str, operator: Operator) -> Operator:
        """Let an object on the driver take part in every checkpoint: `snapshot() -> bytes`, `restore(bytes)`.

        Returns the object. Its state of an epoch is taken after the sinks' views have seen that epoch's frame, and is
        put back at every start. So feed it in a view: a `FunctionSink` is called after the state was taken, and what
        it fed would be missing after a restart.
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

    def sink(self, name: str, sink: Sink, *, view: Callable[[DataFrame], DataFrame] | None = None) -> None:
        """Add a sink. `view` makes this sink's own rows of the epoch's frame; without it, it gets them as they are."""
        self._new(name, "sink", self._sinks)
        if isinstance(sink, type) or not isinstance(sink, Sink):
            raise Invalid(
                f"Sink {name!r} is a {getattr(sink, '__name__', type(sink).__name__)}, which cannot stage and commit.",
                code="pipeline.sink",
                next_step="use one from holdfast.sinks; FunctionSink(function) takes any function of a DataFrame",
            )
        self._sinks[name] = NamedSink(name, sink, view)

    def run(
        self,
        frame: DataFrame,
        *,
        output_mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        restarts: int | None = None,
    ) -> None:
        """Run until the query ends by itself or is asked to stop; Ctrl-C and SIGTERM finish the epoch and return.

        What may pass by itself (a store or a sink that cannot be reached, a workdir that turned out damaged) is tried
        again, at most `restarts` times without an epoch in between (by default what the environment's HOLDFAST_RESTARTS
        says, or 3). Everything else raises.
        """
        allowed = restarts_by_default() if restarts is None else restarts
        supervision = Supervision(self._definition(frame, output_mode, trigger), restarts=allowed)
        self._run = supervision.handle
        supervision.run()

    def start(self, frame: DataFrame, *, output_mode: str = "append", trigger: Mapping[str, Any] | None = None) -> Run:
        """Recover, start the query and return a handle with `stop()` and `await_termination()`."""
        self._run = run = Run(self._definition(frame, output_mode, trigger))
        run.begin()
        return run

    def _definition(self, frame: DataFrame, output_mode: str, trigger: Mapping[str, Any] | None) -> Definition:
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
        is_shared = self._has_chosen_workdir or _is_local(self._address)
        if not is_shared and not is_one_process(frame.sparkSession):
            raise Invalid(
                "On a cluster the workdir lies where the driver and all executors see it; there is no such place by "
                "default.",
                code="workdir.cluster",
                about=f"pipeline {self.name!r}",
                unchanged="everything",
                next_step='pass workdir="/a/shared/path" to Pipeline',
            )
        return Definition(
            name=self.name,
            frame=frame,
            output_mode=output_mode,
            trigger=_checked_trigger(trigger),
            store=self._store,
            reopening=self._reopening(),
            workdir=self.workdir,
            sources=dict(self._sources),
            tables=dict(self._tables),
            operators=dict(self._operators),
            sinks=dict(self._sinks),
            on_change=self._on_change,
            accepts_loss=self.accepts_loss,
            anew_after=self._anew_after,
        )

    def start_over(self) -> None:
        """Resume from no checkpoint that is there now, but begin again under a new lineage and with an empty workdir.

        For sinks whose results are made anew by that; any other would get everything a second time. `Fenced` if another
        driver has taken over.
        """
        self._store.check_lease()
        self._anew_after = max(self._store.list_ids(), default=0)
        self.workdir.discard(self._store.check_lease)

    @property
    def sinks(self) -> dict[str, Sink]:
        """Every sink by its name."""
        return {name: named.sink for name, named in self._sinks.items()}

    def _reopening(self) -> Reopening | None:
        """None for a store in memory, and for one that was passed in opened: its settings are not known here."""
        is_known = self._is_own_store or self._options is not None or _is_local(self._address)
        if not is_known or self._address.startswith("memory:"):
            return None
        return Reopening(self._address, dict(self._options) if self._options else None)

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


def _checked_trigger(trigger: Mapping[str, Any] | None) -> dict[str, Any]:
    chosen = dict(trigger or {})
    if len(chosen) > 1 or not chosen.keys() <= TRIGGERS:
        raise Invalid(
            f"{chosen!r} is not a trigger that a pipeline can have.",
            code="pipeline.trigger",
            next_step="use one of " + ", ".join(f"{{{name!r}: ...}}" for name in sorted(TRIGGERS)),
        )
    return chosen


def _is_local(address: str) -> bool:
    return "://" not in address or address.startswith("file://")


def _default_workdir(address: str, name: str) -> Path:
    if _is_local(address):
        return Path(open_store(address).objects.root) / "workdir"  # type: ignore[attr-defined]
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    place = re.sub(r"[^A-Za-z0-9._-]+", "-", without_secrets(address).split("://", 1)[1]).strip("-")
    return Path(base) / "holdfast" / "workdirs" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{place}"[:200]
