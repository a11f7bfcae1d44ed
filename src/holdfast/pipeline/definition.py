"""What a pipeline consists of, as data: what the user put together, and what preflight has added to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import ConnectorCheckpoint
from holdfast.pipeline.query_plan import Query, stable_hash
from holdfast.pipeline.recovery_plan import OnChange, PipelineSpec
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.pack import Reopening
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sinks import EXACTLY_ONCE, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERSION = "version"
"""The key of a reference table's version among its offsets."""


class Operator(Protocol):
    """A user's own object on the driver that takes part in every checkpoint."""

    def snapshot(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...


class NamedSink:
    """A sink of one pipeline, with the view of the frame that it gets."""

    def __init__(self, name: str, sink: Sink, view: Callable[[DataFrame], DataFrame] | None) -> None:
        self.name = name
        self.sink = sink
        self.view = view

    def frame(self, frame: DataFrame) -> DataFrame:
        return self.view(frame) if self.view else frame

    @property
    def computes_all(self) -> bool:
        """Whether staging computes the whole frame: a view may ask for a part, and a function is called later."""
        return self.view is None and self.sink.guarantee == EXACTLY_ONCE


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
    reopening: Reopening | None
    """How an executor opens the store; None if that is not known."""
    workdir: Workdir
    sources: dict[str, Any]
    tables: dict[str, ReferenceTable]
    operators: dict[str, Operator]
    sinks: dict[str, NamedSink]
    on_change: OnChange
    accepts_loss: bool = True
    anew_after: int = 0

    @property
    def workdir_owner(self) -> WorkdirOwner:
        return WorkdirOwner(self.name, self.store.objects.address)

    def hash_with(self, query: Query) -> int:
        """The pipeline hash: of queries, sources, sinks and options, the same in every process and on every machine."""
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
    pipeline_hash: int
    initial_states: dict[str, bytes]
    """The operators' states before the pipeline touched them."""

    @property
    def spec(self) -> PipelineSpec:
        """What a recovery plan has to know of it."""
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
        )
