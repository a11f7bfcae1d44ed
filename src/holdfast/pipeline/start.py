"""From a definition to a running query: check everything, take the pipeline over, recover, start."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import CheckpointManifest, InFlightRecord, SinkCommitStatus
from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid
from holdfast.pipeline.epoch import EpochCoordinator, NamedSink, Operator
from holdfast.pipeline.epoch_manifest import EpochFacts, connector_checkpoint, with_statuses
from holdfast.pipeline.frames import FrameCache
from holdfast.pipeline.query_plan import Query, describe_query, stable_hash
from holdfast.pipeline.query_run import QueryRun, WorkdirCapturing, first_line
from holdfast.pipeline.recovery import apply_to_workdir, finish_sinks, observe, observe_workdir, recover_sinks
from holdfast.pipeline.recovery_plan import (
    Observation,
    OnChange,
    PipelineSpec,
    RecoveryPlan,
    check_start,
    owing,
    plan_recovery,
)
from holdfast.pipeline.reference_table import VERSION, ReferenceTable
from holdfast.pipeline.reports import Notice, tell
from holdfast.pipeline.workdir.fence import fence_workdir
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.pack import Reopening, is_one_process, packing_for
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from holdfast.pipeline.workdir.workdir import SPOOL, Workdir
from holdfast.sinks import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("holdfast.spark")
NOTHING_TOUCHED = "the store and every sink"
ORDERED_SOURCES = 4
"""Version 2 of the offset log names its sources and keeps so many in the order of the query."""


class PipelineDefinition(msgspec.Struct, frozen=True):
    """Everything a pipeline is made of."""

    name: str
    frame: Any
    output_mode: str
    trigger: dict[str, Any]
    store: CheckpointStore
    reopening: Reopening | None
    """How an executor opens the store; None if nobody said how."""
    workdir: Workdir
    sources: dict[str, Any]
    tables: dict[str, ReferenceTable]
    operators: dict[str, Operator]
    sinks: dict[str, NamedSink]
    on_change: OnChange
    accepts_loss: bool = True
    anew_after: int = 0


class PreparedPipeline(msgspec.Struct, frozen=True):
    """A definition that Spark and the sinks have nothing against."""

    definition: PipelineDefinition
    query: Query
    pipeline_hash: int
    initial: dict[str, bytes]
    """What the operators held before the pipeline touched them."""

    @property
    def wanted(self) -> PipelineSpec:
        definition = self.definition
        return PipelineSpec(
            definition.name,
            self.pipeline_hash,
            frozenset(source.name for source in self.query.sources),
            frozenset(definition.sinks),
            frozenset(definition.operators),
            definition.on_change,
            self.query.is_deterministic,
            tuple(source.name for source in self.query.sources),
            definition.accepts_loss,
            definition.anew_after,
        )


def preflight(definition: PipelineDefinition) -> PreparedPipeline:
    """Refuse whatever can be refused before any data moves, and before a driver that is at work is fenced."""
    query = describe_query(definition.frame, definition.sources)
    pipeline_hash = stable_hash(
        {
            "plan": query.plan,
            "schema": definition.frame.schema.jsonValue(),
            "output_mode": definition.output_mode,
            "sources": [[source.name, source.connector] for source in query.sources],
            "tables": sorted(definition.tables),
            "operators": sorted(definition.operators),
            "sinks": {name: named.sink.describe() for name, named in definition.sinks.items()},
        }
    )
    initial = {name: operator.snapshot() for name, operator in definition.operators.items()}
    checked = PreparedPipeline(definition, query, pipeline_hash, initial)
    newest = _newest_readable(definition.store)
    seen, _ = observe_workdir(definition.workdir, definition.store, None)
    lineage = check_start(Observation(definition.store.objects.address, newest, seen), checked.wanted)
    try:
        _prepare_sinks(checked, lineage)
    finally:  # views may have fed the operators with the empty frame
        for name, operator in definition.operators.items():
            operator.restore(initial[name])
    return checked


def _newest_readable(store: CheckpointStore) -> CheckpointManifest | None:
    """A first look at the newest manifest; whether it can be trusted is found out once the pipeline is ours."""
    try:
        return store.load_latest()
    except Corrupt:
        return None


def _prepare_sinks(checked: PreparedPipeline, lineage: int) -> None:
    definition = checked.definition
    empty = None
    for name, named in definition.sinks.items():
        schema = definition.frame.schema
        if named.view:
            if empty is None:
                empty = definition.frame.sparkSession.createDataFrame([], schema)
            schema = named.view(empty).schema
        try:
            with step("sink.prepare", sink=name):
                named.sink.prepare(schema, Delivery(definition.name, name, lineage, 0))
        except HoldfastError as error:
            raise error.within(f"Sink {name!r}", unchanged=None if error.unchanged else NOTHING_TOUCHED) from error


def recover_and_start(checked: PreparedPipeline) -> QueryRun:
    """Take the pipeline over, bring store, sinks and workdir to one point, and start Spark from there."""
    definition = checked.definition
    store, name = definition.store, definition.name
    store.check_lease()  # started again in one process: somebody may have taken over meanwhile
    generation = store.claim().generation
    first_id = store.next_id(saved_only=True)
    workdir = fence_workdir(definition.workdir, generation, store.check_lease)
    definition = msgspec.structs.replace(definition, workdir=workdir)
    checked = msgspec.structs.replace(checked, definition=definition)
    looked = observe(store, workdir)
    newest = looked.observed.newest
    standings = recover_sinks(definition.sinks, newest, name, generation, looked.doubtful)
    observed = msgspec.structs.replace(looked.observed, sinks=standings)
    plan = _plan(observed, checked)
    for sentence in plan.words():
        log.info("%s: %s", name, sentence, extra={"is_told": True})
        tell(Notice(name, sentence))
    if newest is not None and plan.unfinished:
        newest = _finish(plan, newest, checked, generation)
    packing = packing_for(definition.frame.sparkSession, definition.reopening)
    capture = WorkdirSnapshotter(workdir, store, packing)
    apply_to_workdir(plan, looked, workdir, capture, store, WorkdirOwner(name, store.objects.address))
    resumed = newest if plan.checkpoint_id is not None else None
    _check_replayed_tables(definition, plan, newest)
    runner = _runner(checked, plan, resumed, generation, capture, first_id)
    _restore_operators(checked, runner, resumed)
    return _start(checked, plan, runner)


def _plan(observed: Observation, checked: PreparedPipeline) -> RecoveryPlan:
    """The plan; `Conflict` where it failed because a driver that was taken over decided one more epoch meanwhile."""
    try:
        return plan_recovery(observed, checked.wanted)
    except Corrupt as error:
        known = [number for number, _ in observed.skipped] + [observed.newest.checkpoint_id if observed.newest else 0]
        if max(checked.definition.store.list_ids(), default=0) <= max(known):
            raise
        raise Conflict(
            "A driver that has been taken over decided one more epoch while we looked.",
            code="epoch.decided-elsewhere",
            about=observed.store,
            unchanged="the store, the workdir and every sink",
            next_step="start the pipeline again: it finishes what was decided",
        ) from error


def _check_replayed_tables(
    definition: PipelineDefinition, plan: RecoveryPlan, newest: CheckpointManifest | None
) -> None:
    """An epoch that is run again reads its tables as it did; this process has read a newer version already."""
    for table in definition.tables.values():
        recorded = newest.table_offsets.get(table.name) if newest and plan.replayed is not None else None
        if recorded is not None and recorded.offsets.get(VERSION) != table.version:
            raise Invalid(
                f"Epoch {plan.delivered} has to be run again with version {recorded.offsets.get(VERSION)} of table "
                f"{table.name!r}, and this process has read version {table.version}.",
                code="table.replay",
                about=f"table {table.name!r}",
                unchanged="the store and every sink; the workdir is ready",
                next_step="start the pipeline again: it reads the recorded version",
            )


def _finish(
    plan: RecoveryPlan, newest: CheckpointManifest, checked: PreparedPipeline, generation: int
) -> CheckpointManifest:
    definition = checked.definition
    finished = finish_sinks(plan, newest, definition.sinks, definition.name, generation)
    left = sorted(set(plan.unfinished) - set(finished))
    if left and plan.checkpoint_id is None:  # a reset runs no epoch again
        raise owing(left[0], newest)
    if not finished:
        return newest
    settled = with_statuses(newest, dict.fromkeys(finished, SinkCommitStatus.committed()))
    with step("epoch.settle", epoch=newest.epoch):
        return definition.store.update_manifest(settled)


def _runner(
    checked: PreparedPipeline,
    plan: RecoveryPlan,
    newest: CheckpointManifest | None,
    generation: int,
    capture: WorkdirSnapshotter,
    first_id: int,
) -> EpochCoordinator:
    definition = checked.definition
    sinks = list(definition.sinks.values())
    return EpochCoordinator(
        pipeline=definition.name,
        lineage=plan.lineage,
        generation=generation,
        store=definition.store,
        sinks=definition.sinks,
        operators=definition.operators,
        capturing=WorkdirCapturing(capture),
        frames=FrameCache(
            is_read_once=len(sinks) == 1 and sinks[0].computes_all,
            may_differ=not checked.query.is_deterministic and not is_one_process(definition.frame.sparkSession),
            spool=definition.workdir.path / f"{SPOOL}-{generation}",
        ),
        newest=newest,
        delivered=plan.delivered,
        first_id=first_id,
    )


def _restore_operators(checked: PreparedPipeline, runner: EpochCoordinator, newest: CheckpointManifest | None) -> None:
    for name, operator in checked.definition.operators.items():
        operator.restore(checked.initial[name])
    if newest is not None:
        runner.restore_operators(newest)


def _start(checked: PreparedPipeline, plan: RecoveryPlan, runner: EpochCoordinator) -> QueryRun:
    definition = checked.definition
    frame: DataFrame = definition.frame
    attempt = QueryRun(
        pipeline=definition.name,
        workdir=definition.workdir,
        runner=runner,
        sources=tuple(source.name for source in checked.query.sources),
        facts_of=lambda batch_id, summary: facts_of(checked, plan.lineage, batch_id, summary),
        lineage=plan.lineage,
        replays=plan.replayed is not None,
    )
    writer = (
        frame.writeStream.foreachBatch(attempt.run_batch)
        .outputMode(definition.output_mode)
        .option("checkpointLocation", f"file://{definition.workdir.path}")
        .queryName(definition.name)
    )
    try:
        if definition.trigger:
            writer = writer.trigger(**definition.trigger)
        attempt.query = writer.start()
    except Exception as error:
        attempt.close()
        raise _refused_by_spark(definition, error) from error
    return attempt


def _refused_by_spark(definition: PipelineDefinition, error: Exception) -> HoldfastError:
    return Invalid(
        f"Spark does not run this query: {first_line(error)}",
        code="pipeline.refused-by-spark",
        about=f"pipeline {definition.name!r}",
        unchanged="every checkpoint and every sink",
        next_step="change the query, its output mode or its trigger",
    )


def facts_of(checked: PreparedPipeline, lineage: int, batch_id: int, summary: Mapping[str, Any]) -> EpochFacts:
    """What Spark's logs say of a batch that it has planned."""
    definition, workdir = checked.definition, checked.definition.workdir
    planned = workdir.spark_checkpoint.planned(batch_id)
    before = workdir.spark_checkpoint.planned(batch_id - 1) if batch_id > 0 else None
    sources = checked.query.sources
    is_ordered = planned.version == 1 or len(sources) <= ORDERED_SOURCES
    if len(planned.ends) != len(sources) or not is_ordered:
        raise Invalid(
            f"Spark's log (version {planned.version}) names {len(planned.ends)} sources, the query has {len(sources)}: "
            "they cannot be told apart.",
            code="workdir.sources",
            about=f"offsets/{batch_id}",
            unchanged="every checkpoint and every sink",
            next_step="begin the pipeline without spark.sql.streaming.queryEvolution.enableSourceEvolution",
        )
    epoch = batch_id + 1
    starts = before.ends if before else (None,) * len(sources)
    partitions = int(planned.settings.get("spark.sql.shuffle.partitions", 0))
    has_state = (workdir.path / "state").is_dir()
    spark = definition.frame.sparkSession
    return EpochFacts(
        epoch=epoch,
        batch_id=batch_id,
        lineage=lineage,
        sources={
            source.name: connector_checkpoint(end, connector=source.connector, epoch=epoch)
            for source, end in zip(sources, planned.ends, strict=True)
        },
        tables={name: table.checkpoint(epoch) for name, table in definition.tables.items()},
        ranges={
            source.name: [_range(batch_id, start, end)]
            for source, start, end in zip(sources, starts, planned.ends, strict=True)
            if end is not None
        },
        positions={source.name: end for source, end in zip(sources, planned.ends, strict=True)},
        watermark=planned.watermark_ms or None,
        pipeline_hash=checked.pipeline_hash,
        workdir=str(workdir.home),
        state_partitions=partitions if has_state else 0,
        vnode_count=min(max(partitions, 1), 0xFFFF),
        runtime={
            "pipeline": definition.name,
            "spark": spark.version,
            "query_id": workdir.spark_checkpoint.logs().query_id,
            "offset_log": planned.version,
            "sources": [source.name for source in sources],
            "output_mode": definition.output_mode,
            "guarantees": {name: named.sink.guarantee for name, named in definition.sinks.items()},
            "last_epoch": dict(summary),
        },
    )


def _range(batch_id: int, start: str | None, end: str) -> InFlightRecord:
    text = msgspec.json.encode({"start": start, "end": end})
    return InFlightRecord(batch_id, base64.b64encode(text).decode())
