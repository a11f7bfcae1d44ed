"""From a definition to a running query: preflight, take over, observe, plan, apply, run."""

from __future__ import annotations

import logging

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid
from holdfast.pipeline.definition import VERSION, PipelineDefinition, PreparedPipeline
from holdfast.pipeline.epoch import EpochCoordinator
from holdfast.pipeline.query_plan import describe_query
from holdfast.pipeline.query_run import QueryRun
from holdfast.pipeline.recovery import apply, observe, observe_workdir, recover_sinks
from holdfast.pipeline.recovery_plan import Observation, RecoveryPlan, check_start, plan_recovery
from holdfast.pipeline.reports import Notice, tell
from holdfast.pipeline.workdir.fence import fence_workdir
from holdfast.pipeline.workdir.pack import packing_for
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sinks import Delivery

log = logging.getLogger("holdfast.spark")
NOTHING_TOUCHED = "the store and every sink"


class Claim(msgspec.Struct, frozen=True):
    """A pipeline that this driver has taken over from every other."""

    generation: int
    first_id: int
    """The id of the next checkpoint, chosen before anything was looked at."""
    workdir: Workdir
    """Reached by a path that only this generation has."""


def start(prepared: PreparedPipeline) -> QueryRun:
    """Take the pipeline over, bring store, sinks and workdir to one point, and start Spark from there.

    Every stage may be repeated: a crash between two of them is a start that comes later.
    """
    definition = prepared.definition
    claim = take_over(definition.store, definition.workdir)
    seen = _observe(definition, claim)
    plan = _plan(seen, prepared)
    _announce(plan, definition.name)
    snapshotter = _snapshotter(definition, claim)
    newest = apply(
        plan,
        seen,
        definition=definition,
        workdir=claim.workdir,
        generation=claim.generation,
        snapshotter=snapshotter,
    )
    return _run(prepared, plan, claim, snapshotter, newest)


# 1. Preflight: what can be refused while another driver may be at work


def preflight(definition: PipelineDefinition) -> PreparedPipeline:
    """Refuse whatever can be refused before any data moves, and before a driver that is at work is fenced."""
    query = describe_query(definition.frame, definition.sources)
    states = {name: operator.snapshot() for name, operator in definition.operators.items()}
    prepared = PreparedPipeline(
        definition=definition, query=query, pipeline_hash=definition.hash_with(query), initial_states=states
    )
    newest = _newest_unverified(definition.store)
    workdir, _ = observe_workdir(definition.workdir, definition.store, None)
    lineage = check_start(Observation(definition.store.objects.address, newest, workdir), prepared.spec)
    try:
        _prepare_sinks(definition, lineage)
    finally:  # views may have fed the operators with the empty frame
        for name, operator in definition.operators.items():
            operator.restore(states[name])
    return prepared


def _newest_unverified(store: CheckpointStore) -> CheckpointManifest | None:
    """Load the newest manifest without verifying it. Verification happens after the claim."""
    try:
        return store.load_latest()
    except Corrupt:
        return None


def _prepare_sinks(definition: PipelineDefinition, lineage: int) -> None:
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


# 2. Take over: from here on every other driver is fenced


def take_over(store: CheckpointStore, workdir: Workdir) -> Claim:
    """Claim the store, then close every other generation's path to the workdir.

    `Fenced` if another driver has taken over since this process claimed the store: restarting must not take it back.
    """
    store.check_lease()
    generation = store.claim(recheck_after=1.0).generation
    first_id = store.next_id(saved_only=True)
    return Claim(generation, first_id, fence_workdir(workdir, generation, store.check_lease))


# 3. Observe


def _observe(definition: PipelineDefinition, claim: Claim) -> Observation:
    """Store and workdir first: what the sinks are asked to keep depends on the newest checkpoint."""
    seen = observe(definition.store, claim.workdir)
    sinks = recover_sinks(definition.sinks, seen.newest, definition.name, claim.generation, seen.doubtful)
    return msgspec.structs.replace(seen, sinks=sinks)


# 4. Plan


def _plan(seen: Observation, prepared: PreparedPipeline) -> RecoveryPlan:
    """The plan. `Conflict` if it failed because a driver that was taken over decided one more epoch meanwhile."""
    try:
        return plan_recovery(seen, prepared.spec)
    except Corrupt as error:
        known = [number for number, _ in seen.skipped] + [seen.newest.checkpoint_id if seen.newest else 0]
        if max(prepared.definition.store.list_ids(), default=0) <= max(known):
            raise
        raise Conflict(
            "A driver that has been taken over decided one more epoch while we looked.",
            code="epoch.decided-elsewhere",
            about=seen.store,
            unchanged="the store, the workdir and every sink",
            next_step="start the pipeline again: it finishes what was decided",
        ) from error


def _announce(plan: RecoveryPlan, pipeline: str) -> None:
    for sentence in plan.words():
        log.info("%s: %s", pipeline, sentence, extra={"is_told": True})
        tell(Notice(pipeline, sentence))


# 5. Apply: recovery.apply


def _snapshotter(definition: PipelineDefinition, claim: Claim) -> WorkdirSnapshotter:
    packing = packing_for(definition.frame.sparkSession, definition.reopening)
    return WorkdirSnapshotter(claim.workdir, definition.store, packing)


# 6. Run


def _run(
    prepared: PreparedPipeline,
    plan: RecoveryPlan,
    claim: Claim,
    snapshotter: WorkdirSnapshotter,
    newest: CheckpointManifest | None,
) -> QueryRun:
    definition = prepared.definition
    _check_replayed_tables(definition, plan, newest)
    resumed = newest if plan.checkpoint_id is not None else None
    coordinator = EpochCoordinator(
        pipeline=definition.name,
        lineage=plan.lineage,
        generation=claim.generation,
        store=definition.store,
        sinks=definition.sinks,
        operators=definition.operators,
        snapshotter=snapshotter,
        newest=resumed,
        delivered=plan.delivered,
        first_id=claim.first_id,
    )
    for name, operator in definition.operators.items():
        operator.restore(prepared.initial_states[name])
    if resumed is not None:
        coordinator.restore_operators(resumed)
    run = QueryRun(
        prepared,
        coordinator,
        workdir=claim.workdir,
        generation=claim.generation,
        lineage=plan.lineage,
        replays=plan.replayed is not None,
    )
    run.start()
    return run


def _check_replayed_tables(
    definition: PipelineDefinition, plan: RecoveryPlan, newest: CheckpointManifest | None
) -> None:
    """Refuse to replay an epoch with another version of a reference table than the one it was run with."""
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
