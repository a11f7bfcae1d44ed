"""Recovery of a pipeline: observe store, workdir and sinks, and apply the plan that `recovery_plan` makes of it."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import FORMAT_VERSION, BatchEntry, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.pipeline.definition import NamedSink, PipelineDefinition
from holdfast.pipeline.epoch import finish_owed
from holdfast.pipeline.recovery_plan import Observation, RecoveryPlan, WorkdirState, cannot_finish
from holdfast.pipeline.workdir.addresses import rewrite_addresses
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.restore import Comparison, compare, restore
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from holdfast.pipeline.workdir.stamps import WorkdirStamps, changed_since, read_stamps, remove_stamps
from holdfast.pipeline.workdir.workdir import Workdir, is_own_name
from holdfast.sinks import Delivery, SinkProgress


def unchanged_checkpoint(store: CheckpointStore, workdir: Workdir) -> tuple[CheckpointManifest, WorkdirStamps] | None:
    """The newest checkpoint, if store and workdir are as they were when the last query ended; None if not.

    Reads no state: sizes and times of the workdir's files and of the batch objects are those that were left.
    """
    stamps = read_stamps(workdir)
    if stamps is None or stamps.checkpoint_id != max(store.list_ids(), default=0):
        return None
    try:
        manifest = store.load_by_id(stamps.checkpoint_id)
    except Corrupt:
        return None
    if manifest is None or not store.validate_checkpoint(stamps.checkpoint_id, deep=False).valid:
        return None
    return (manifest, stamps) if stamps.is_for(manifest, store.objects) and stamps.is_unchanged(workdir) else None


def newest_checkpoint(
    store: CheckpointStore, *, anew_after: int = 0
) -> tuple[CheckpointManifest | None, list[tuple[int, str]]]:
    """The newest valid checkpoint, every byte of it read, and the newer ones that are not valid.

    None only if the store is empty, or if all of it is damaged and the pipeline begins again after `anew_after`.
    `Unavailable` if a newer checkpoint could not be read: it may be valid, and then
    resuming from an older one would be wrong. `Invalid` if a newer release of Holdfast wrote a newer checkpoint:
    skipping it would repeat its epochs.
    """
    for _ in range(3):
        before = store.list_ids()
        report = store.recover_latest_validated()
        if report.chosen_id is not None or not report.skipped or store.list_ids() == before:
            break  # else a driver that is still running has removed them all meanwhile
    for number, _ in report.skipped:
        _refuse_newer_format(store, number)
    newest_damaged = max((number for number, _ in report.skipped), default=0)
    if report.chosen_id is None and 0 < newest_damaged <= anew_after and not report.unreadable:
        return None, report.skipped
    chosen = report.require()
    if report.unreadable:
        number = report.unreadable[0]
        raise Unavailable(
            f"Checkpoint {number} is newer than {chosen} and could not be read: {dict(report.skipped)[number]}.",
            code="recovery.unreadable",
            about=f"checkpoint {number}",
            unchanged="the store, the workdir and every sink",
            next_step="try again when the store can be read: that checkpoint may be fine",
        )
    return (store.load_by_id(chosen) if chosen is not None else None), report.skipped


def _refuse_newer_format(store: CheckpointStore, number: int) -> None:
    try:
        manifest = store.load_by_id(number)
    except HoldfastError:
        return
    if manifest is not None and manifest.version > FORMAT_VERSION:
        raise Invalid(
            f"Checkpoint {number} has format version {manifest.version}; this release knows up to {FORMAT_VERSION}.",
            code="checkpoint.newer-format",
            about=f"checkpoint {number}",
            unchanged="the store, the workdir and every sink",
            next_step="run the pipeline with the release of Holdfast that wrote it, or a newer one",
        )


def observe(store: CheckpointStore, workdir: Workdir, *, anew_after: int = 0, verify: bool = False) -> Observation:
    """Observe store and workdir. Changes nothing; the sinks are asked by `recover_sinks` after the claim.

    With `verify` every byte is read, whatever stamps vouch for.
    """
    if not verify and (unchanged := unchanged_checkpoint(store, workdir)):
        state, held = observe_workdir(workdir, store, *unchanged)
        return Observation(store.objects.address, unchanged[0], state, held=held)
    newest, skipped = newest_checkpoint(store, anew_after=anew_after)
    state, held = observe_workdir(workdir, store, newest)
    return Observation(
        store.objects.address, newest, state, skipped, held=held, doubtful=_newest_of_skipped(store, skipped)
    )


def _newest_of_skipped(store: CheckpointStore, skipped: list[tuple[int, str]]) -> CheckpointManifest | None:
    try:
        return store.load_by_id(max(number for number, _ in skipped)) if skipped else None
    except HoldfastError:
        return None


def observe_workdir(
    workdir: Workdir, store: CheckpointStore, newest: CheckpointManifest | None, stamps: WorkdirStamps | None = None
) -> tuple[WorkdirState, dict[str, tuple[BatchEntry, ...]]]:
    """Where the workdir stands, and which of its files the newest checkpoint holds exactly as they are.

    Bytes are compared unless `stamps` say that nothing has changed.
    """
    if workdir.is_empty():
        left = workdir.left_behind() if newest is None else None
        if left is not None:  # without a checkpoint it is the only one to tell that epochs were delivered
            return observe_workdir(left, store, None)
        return WorkdirState(workdir.address, absence=workdir.absence), {}
    spark_checkpoint = workdir.spark_checkpoint
    logs = spark_checkpoint.logs()
    known: set[str] = set()
    comparison = None
    if stamps is not None:
        comparison, known = Comparison(None, stamps.entries()), stamps.unchanged_newer(workdir)
    elif newest is not None:
        comparison = compare(workdir, store.objects, newest)
    problem = logs.problem or (comparison.difference if comparison else None)
    if problem is None and newest is not None and comparison is not None:
        problem = spark_checkpoint.damage_after(newest.wal_position, comparison.same.keys() | known)
        if problem is None and not workdir.has_checksums and (stamps is None or stamps.newer.keys() - known):
            problem = changed_since(workdir, stamps)
    owner = workdir.owner()
    state = WorkdirState(
        workdir.address,
        is_empty=False,
        pipeline=owner.pipeline if owner else None,
        store=owner.store if owner else None,
        query_id=logs.query_id,
        looks_like_spark=all(is_own_name(name) for name in spark_checkpoint.unknown_names()),
        planned=logs.planned,
        committed=logs.committed,
        problem=problem,
        suspect_reason=workdir.suspect_reason(logs.committed),
    )
    return state, comparison.same if comparison else {}


def recover_sinks(
    sinks: Mapping[str, NamedSink],
    newest: CheckpointManifest | None,
    pipeline: str,
    generation: int,
    doubtful: CheckpointManifest | None = None,
) -> dict[str, SinkProgress]:
    """Ask every sink for its progress; each removes what earlier drivers staged and no driver will commit.

    Output staged for `doubtful`, a damaged checkpoint, is kept, in case that checkpoint is repaired.
    """
    lineage = newest.own.lineage if newest else 0
    epoch = newest.epoch if newest else 0
    progress = {}
    for name, named in sinks.items():
        owed = [
            found.own.sinks.get(name) for found in (newest, doubtful) if found is not None and name in found.owed_sinks
        ]
        keep = owed[0] if owed else None
        try:
            with step("sink.recover", sink=name):
                progress[name] = named.sink.recover(Delivery(pipeline, name, lineage, epoch, generation), keep)
        except HoldfastError as error:
            raise error.within(f"Sink {name!r}, asked for its progress") from error
    return progress


def apply(
    plan: RecoveryPlan,
    seen: Observation,
    *,
    definition: PipelineDefinition,
    workdir: Workdir,
    generation: int,
    snapshotter: WorkdirSnapshotter,
) -> CheckpointManifest | None:
    """Carry the plan out: finish the last epoch in the sinks, then make the workdir ready. Returns the newest manifest.

    After a crash half-way the next start observes and plans again.
    """
    newest = seen.newest
    if newest is not None and plan.owed_sinks:
        newest = _finish_last_epoch(plan, newest, definition, generation)
    apply_to_workdir(plan, seen, workdir, snapshotter, definition.store, definition.workdir_owner)
    return newest


def _finish_last_epoch(
    plan: RecoveryPlan, newest: CheckpointManifest, definition: PipelineDefinition, generation: int
) -> CheckpointManifest:
    """Commit what was staged. A sink whose staged output is gone gets it when Spark runs the epoch again."""
    finished = finish_owed(newest, definition.sinks, definition.store, pipeline=definition.name, generation=generation)
    finished.raise_failure()
    if plan.replayed is None and finished.manifest.owed_sinks:  # no replay would deliver it later
        raise cannot_finish(finished.manifest.owed_sinks[0], newest)
    return finished.manifest


def apply_to_workdir(
    plan: RecoveryPlan,
    seen: Observation,
    workdir: Workdir,
    snapshotter: WorkdirSnapshotter,
    store: CheckpointStore,
    owner: WorkdirOwner,
) -> None:
    """Make the workdir what the plan says, and tell the snapshotter which of its files the store has.

    The lease is checked before anything is removed: a driver that was frozen until now must not touch the workdir of
    its successor.
    """
    try:
        store.check_lease()
        workdir.sweep(store.check_lease)
        remove_stamps(workdir)
        store.check_lease()  # a successor either finds no stamps, or is found here: it never shares the workdir with us
        match plan.workdir:
            case "begin":
                workdir.discard(store.check_lease)
                workdir.make(owner)
                held, order = {}, []
            case "rebuild":
                assert seen.newest is not None
                held = restore(workdir, store.objects, seen.newest, owner, store.check_lease)
                order = seen.newest.needed_batches
            case "keep" | "adopt":
                assert seen.newest is not None
                workdir.make(owner)
                rewrite_addresses(workdir)
                held, order = seen.held, seen.newest.needed_batches
        snapshotter.begin(held, order)
    except OSError as error:
        raise Unavailable(
            f"The workdir {workdir.address} cannot be made ready: {error.strerror or error}.",
            code="workdir.disk",
            about=workdir.address,
            unchanged="the store and every sink",
            next_step="make room or let this user write there, or pass another workdir; then start again",
        ) from error
