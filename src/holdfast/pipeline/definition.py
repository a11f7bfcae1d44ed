"""A pipeline as data: the user's definition, and the same definition with the results of preflight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import ConnectorCheckpoint
from holdfast.pipeline.query.description import Description, describe_sinks
from holdfast.pipeline.query.plan import Query
from holdfast.pipeline.query.plan_text import stable_hash
from holdfast.pipeline.recovery_plan import OnChange, PipelineSpec
from holdfast.pipeline.reports import EpochReport, Listeners
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sinks import EXACTLY_ONCE, Sink
from holdfast.storage.objects.spark_access import Access

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSION = "version"
"""The key of a reference table's version among its offsets."""


OnRefused = Literal["stop", "dead-letter"]
"""What becomes of an epoch in which a sink refuses rows: it fails, or the rows go to the dead letters."""


class Operator(Protocol):
    """A user's own object on the driver that takes part in every checkpoint."""

    def snapshot(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...


class NamedSink:
    """A sink of one pipeline, with the view of the frame that it gets."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        view: Callable[[DataFrame], DataFrame] | None,
        on_refused: OnRefused = "stop",
    ) -> None:
        self.name = name
        self.sink = sink
        self.view = view
        self.on_refused = on_refused

    def frame(self, frame: DataFrame) -> DataFrame:
        return self.view(frame) if self.view else frame

    @property
    def computes_all(self) -> bool:
        """Whether staging computes the whole frame.

        A view may need only a part of it, so does a sink that gets the accepted rows, and a function is called later.
        """
        return self.view is None and self.on_refused == "stop" and self.sink.guarantee == EXACTLY_ONCE


class ReferenceTable(msgspec.Struct, frozen=True):
    """The static side of a join, at the version it is read at in this run."""

    name: str
    version: str

    def checkpoint(self, epoch: int) -> ConnectorCheckpoint:
        return ConnectorCheckpoint({VERSION: self.version}, epoch, {"connector": "table"})


class PipelineDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a pipeline is made of."""

    name: str
    frame: Any
    output_mode: str
    trigger: dict[str, Any]
    store: CheckpointStore
    access: Access | None
    """How an executor opens the store; None if that is not known."""
    workdir: Workdir
    sources: dict[str, Any]
    tables: dict[str, ReferenceTable]
    operators: dict[str, Operator]
    sinks: dict[str, NamedSink]
    on_change: OnChange
    on_epoch: Listeners[EpochReport] = msgspec.field(default_factory=lambda: Listeners("a listener of epochs"))
    accepts_loss: bool = True
    anew_after: int = 0
    verify: bool = False
    """Whether a start reads every byte of checkpoint and workdir, also where stamps vouch for them."""

    @property
    def workdir_owner(self) -> WorkdirOwner:
        return WorkdirOwner(self.name, self.store.objects.address)

    def describe(self, query: Query) -> Description:
        """What the pipeline is, for the manifest and for the comparison with the newest one."""
        return Description(
            spark=self.frame.sparkSession.version,
            sources=list(query.sources),
            plan=query.nodes,
            plan_fingerprint=query.fingerprint,
            state=query.state,
            output_mode=self.output_mode,
            columns=self.frame.schema.simpleString(),
            sinks=describe_sinks({name: named.sink.describe() for name, named in self.sinks.items()}),
            tables=sorted(self.tables),
            operators=sorted(self.operators),
            settings=query.settings,
        )

    def plan_hash(self, query: Query) -> int:
        """The pipeline hash of manifests without a description, over the whole text of the plan.

        No longer written: a checkpoint that has it is resumed if it is still the same.
        """
        return stable_hash(
            {
                "plan": query.plan,
                "schema": self.frame.schema.jsonValue(),
                "output_mode": self.output_mode,
                "sources": [[source.name, source.connector] for source in query.sources],
                "tables": sorted(self.tables),
                "operators": sorted(self.operators),
                "sinks": {name: named.sink.describe() for name, named in self.sinks.items()},
            }
        )


class PreparedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that passed preflight: Spark can plan it and every sink takes its rows."""

    definition: PipelineDefinition
    query: Query
    description: Description
    initial_states: dict[str, bytes]
    """The operators' states before the pipeline touched them."""

    @property
    def pipeline_hash(self) -> int:
        return self.description.identity_hash()

    @property
    def spec(self) -> PipelineSpec:
        """The facts that a recovery plan needs."""
        definition = self.definition
        source_order = tuple(source.name for source in self.query.sources)
        return PipelineSpec(
            pipeline=definition.name,
            pipeline_hash=self.pipeline_hash,
            sources=frozenset(source_order),
            sinks=frozenset(definition.sinks),
            operators=frozenset(definition.operators),
            on_change=definition.on_change,
            is_deterministic=self.query.is_deterministic,
            source_order=source_order,
            accepts_loss=definition.accepts_loss,
            anew_after=definition.anew_after,
            description=self.description,
            plan_hash=definition.plan_hash(self.query),
        )
