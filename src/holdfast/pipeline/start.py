"""From a definition to a running query: preflight, take over, observe, plan, apply, run."""

from __future__ import annotations

import logging

import msgspec

from holdfast.base.jvm import default_parallelism
from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore, Lease
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid
from holdfast.pipeline.dead_letters import DeadLetterSink, check_view
from holdfast.pipeline.definition import VERSION, PipelineDefinition, PreparedPipeline
from holdfast.pipeline.epoch import EpochCoordinator
from holdfast.pipeline.heartbeat import HeartbeatThread
from holdfast.pipeline.query.plan import describe_query
from holdfast.pipeline.query_run import QueryRun
from holdfast.pipeline.recovery import apply, observe, observe_workdir, recover_sinks
from holdfast.pipeline.recovery_plan import Observation, RecoveryPlan, check_start, plan_recovery
from holdfast.pipeline.reports import Notice, tell
from holdfast.pipeline.start_warnings import growing_sinks, many_partitions
from holdfast.pipeline.takeover import announce_takeover
from holdfast.pipeline.workdir.executor_probe import SinkPath, check_executors_see, check_executors_share
from holdfast.pipeline.workdir.executor_versions import check_executor_versions
from holdfast.pipeline.workdir.file_manager import check_file_manager
from holdfast.pipeline.workdir.pack import packing_for
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sinks import Delivery, WritesToPaths

log = logging.getLogger("holdfast.spark")
NOTHING_TOUCHED = "the store and every sink"


class Claim(msgspec.Struct, frozen=True):
    """A pipeline that this driver has taken over from every other."""

    lease: Lease
    first_id: int
    """The id of the next checkpoint, chosen before anything was observed."""
    workdir: Workdir
    """Reached by a path that only this generation has."""

    @property
    def generation(self) -> int:
        return self.lease.generation


def start(prepared: PreparedPipeline) -> QueryRun:
    """Take the pipeline over, bring store, sinks and workdir to one point, and start Spark from there.

    `preflight` comes first: `Run` calls it once, and then this function again at each restart. Every stage can be
    repeated: after a crash between two stages the next start runs all of them again.
    """
    definition = prepared.definition
    claim = take_over(definition.store, definition.workdir, definition.name)
    heartbeat = HeartbeatThread(definition.store.objects, claim.lease)
    with heartbeat.during_start():
        seen = _observe(definition, claim)
        plan = _plan(seen, prepared)
        _announce(plan, definition.name)
        snapshotter, newest = _apply(plan, seen, prepared, claim)
        return _run(prepared, plan, claim, snapshotter, newest, heartbeat)


# 1. Preflight: what can be refused while another driver may be at work


def preflight(definition: PipelineDefinition) -> PreparedPipeline:
    """Refuse whatever can be refused before any data moves, and before a driver that is at work is fenced."""
    query = describe_query(definition.frame, definition.sources)
    states = {name: operator.snapshot() for name, operator in definition.operators.items()}
    prepared = PreparedPipeline(
        definition=definition, query=query, description=definition.describe(query), initial_states=states
    )
    definition.workdir.check_replaceable()
    check_file_manager(definition.workdir, definition.frame.sparkSession)
    newest = _newest_unverified(definition.store)
    workdir, _ = observe_workdir(definition.workdir, definition.store, None)
    lineage = check_start(Observation(definition.store.objects.address, newest, workdir), prepared.spec)
    check_executor_versions(definition.frame.sparkSession)  # before the sinks try out what they run there
    check_executors_share(_sink_paths(definition), definition.frame.sparkSession)
    try:
        _prepare_sinks(definition, lineage)
    finally:  # views may have fed the operators with the empty frame
        for name, operator in definition.operators.items():
            operator.restore(states[name])
    _warn(prepared, is_first_start=newest is None)
    return prepared


def _warn(prepared: PreparedPipeline, *, is_first_start: bool) -> None:
    definition, spark = prepared.definition, prepared.definition.frame.sparkSession
    sinks = {name: named.sink for name, named in definition.sinks.items() if not isinstance(named, DeadLetterSink)}
    append_only = [name for name, sink in sinks.items() if getattr(sink, "only_appends", False)]
    told = [
        *growing_sinks(definition.output_mode, append_only),
        *many_partitions(
            int(spark.conf.get("spark.sql.shuffle.partitions") or 0),
            default_parallelism(spark),
            is_stateful=bool(prepared.description.state),
            is_first_start=is_first_start,
        ),
    ]
    for sentence in told:
        _tell_warning(definition.name, sentence)


def _tell_warning(pipeline: str, sentence: str) -> None:
    log.warning("%s: %s", pipeline, sentence, extra={"is_told": True})
    tell(Notice(pipeline, sentence, "warning"))


def _newest_unverified(store: CheckpointStore) -> CheckpointManifest | None:
    """Load the newest manifest without verifying it. Verification happens after the claim."""
    try:
        return store.load_latest()
    except Corrupt:
        return None


def _sink_paths(definition: PipelineDefinition) -> list[SinkPath]:
    sinks = {name: named.sink for name, named in definition.sinks.items()}
    return [
        SinkPath(name, path)
        for name, sink in sinks.items()
        if isinstance(sink, WritesToPaths)
        for path in sink.written_paths
    ]


def _prepare_sinks(definition: PipelineDefinition, lineage: int) -> None:
    empty = None
    for name, named in definition.sinks.items():
        schema = definition.frame.schema
        if named.view:
            if empty is None:
                empty = definition.frame.sparkSession.createDataFrame([], schema)
            viewed = named.view(empty)
            check_view(named, viewed)
            schema = viewed.schema
        try:
            with step("sink.prepare", sink=name):
                named.sink.prepare(schema, Delivery(definition.name, name, lineage, 0))
        except HoldfastError as error:
            raise error.within(f"Sink {name!r}", unchanged=None if error.unchanged else NOTHING_TOUCHED) from error


# 2. Take over: from here on every other driver is fenced


def take_over(store: CheckpointStore, workdir: Workdir, pipeline: str) -> Claim:
    """Claim the store, say from whom, then close every other generation's path to the workdir.

    `Fenced` if another driver has taken over since this process claimed the store: restarting must not take it back.
    """
    store.check_lease()
    lease = store.claim(recheck_after=1.0)
    first_id = store.next_id(saved_only=True)
    announce_takeover(store, lease, pipeline)
    return Claim(lease, first_id, workdir.fenced(lease.generation, store.check_lease))


# 3. Observe


def _observe(definition: PipelineDefinition, claim: Claim) -> Observation:
    """Observe store and workdir first: which staged output the sinks keep depends on the newest checkpoint."""
    seen = observe(definition.store, claim.workdir, anew_after=definition.anew_after, verify=definition.verify)
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
            "A driver that has been taken over decided one more epoch during this start.",
            code="epoch.decided-elsewhere",
            about=seen.store,
            unchanged="the store, the workdir and every sink",
            next_step="start the pipeline again: it finishes what was decided",
        ) from error


def _announce(plan: RecoveryPlan, pipeline: str) -> None:
    for sentence in plan.lines():
        log.info("%s: %s", pipeline, sentence, extra={"is_told": True})
        tell(Notice(pipeline, sentence))


# 5. Apply


def _apply(
    plan: RecoveryPlan, seen: Observation, prepared: PreparedPipeline, claim: Claim
) -> tuple[WorkdirSnapshotter, CheckpointManifest | None]:
    """What will take the snapshots of the workdir, and the newest checkpoint as it is after `recovery.apply`."""
    definition = prepared.definition
    snapshotter = WorkdirSnapshotter(
        claim.workdir,
        definition.store,
        packing_for(definition.frame.sparkSession, definition.access),
        is_stateful=bool(prepared.description.state),
    )
    newest = apply(
        plan,
        seen,
        definition=definition,
        workdir=claim.workdir,
        generation=claim.generation,
        snapshotter=snapshotter,
    )
    return snapshotter, newest


# 6. Run


def _run(
    prepared: PreparedPipeline,
    plan: RecoveryPlan,
    claim: Claim,
    snapshotter: WorkdirSnapshotter,
    newest: CheckpointManifest | None,
    heartbeat: HeartbeatThread,
) -> QueryRun:
    definition = prepared.definition
    if warning := check_executors_see(claim.workdir, definition.frame.sparkSession):
        _tell_warning(definition.name, warning)
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
        heartbeat=heartbeat,
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
