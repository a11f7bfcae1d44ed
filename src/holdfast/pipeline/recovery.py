"""Coming back, the effects: look at everything, and carry out the plan that `epochs.recovery` makes of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import FORMAT_VERSION, BatchObject, CheckpointManifest
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.pipeline.epoch import NamedSink
from holdfast.pipeline.recovery_plan import Observation, RecoveryPlan, WorkdirState
from holdfast.pipeline.workdir.addresses import readdress
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.restore import Comparison, compare, restore
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from holdfast.pipeline.workdir.workdir import Workdir, is_own_name
from holdfast.sinks import Delivery, StagedOutputGone, Standing


class Looked(msgspec.Struct, frozen=True):
    """What was observed, and what a comparison of the workdir with the newest checkpoint gave."""

    observed: Observation
    comparison: Comparison | None
    doubtful: CheckpointManifest | None = None
    """The newest checkpoint, if it can be read and not be trusted: what it has staged may be wanted yet."""


def newest_checkpoint(store: CheckpointStore) -> tuple[CheckpointManifest | None, list[tuple[int, str]]]:
    """The newest checkpoint that can be trusted, every byte read, and the newer ones that cannot.

    None only if the store is empty. `Unavailable` if a newer one could not be read: it may be fine, and an older one is
    then the wrong one. `Invalid` if a newer release of Holdfast wrote a newer one: passing that over would
    repeat what it stands for.
    """
    for _ in range(3):
        before = store.list_ids()
        report = store.recover_latest_validated()
        if report.chosen_id is not None or not report.skipped or store.list_ids() == before:
            break  # else a driver that is still at work has removed them all meanwhile
    for number, _ in report.skipped:
        _refuse_newer_format(store, number)
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


def observe(store: CheckpointStore, workdir: Workdir) -> Looked:
    """Observe store and workdir; the sinks are asked once the pipeline is ours."""
    newest, skipped = newest_checkpoint(store)
    seen, comparison = observe_workdir(workdir, store, newest)
    return Looked(Observation(store.objects.address, newest, seen, skipped), comparison, _doubtful(store, skipped))


def _doubtful(store: CheckpointStore, skipped: list[tuple[int, str]]) -> CheckpointManifest | None:
    try:
        return store.load_by_id(max(number for number, _ in skipped)) if skipped else None
    except HoldfastError:
        return None


def observe_workdir(
    workdir: Workdir, store: CheckpointStore, newest: CheckpointManifest | None
) -> tuple[WorkdirState, Comparison | None]:
    """Where the workdir stands, and whether everything the newest checkpoint holds is there as it was captured."""
    if workdir.is_empty():
        return WorkdirState(str(workdir.home)), None
    spark_checkpoint = workdir.spark_checkpoint
    logs = spark_checkpoint.logs()
    comparison = compare(workdir, store.objects, newest) if newest else None
    problem = logs.problem or (comparison.difference if comparison else None)
    if problem is None and newest is not None and comparison is not None:
        problem = spark_checkpoint.damage_after(newest.wal_position, comparison.same.keys())
    belonging = workdir.owner()
    seen = WorkdirState(
        str(workdir.home),
        is_empty=False,
        pipeline=belonging.pipeline if belonging else None,
        store=belonging.store if belonging else None,
        query_id=logs.query_id,
        looks_like_spark=all(is_own_name(name) for name in spark_checkpoint.unknown_names()),
        planned=logs.planned,
        committed=logs.committed,
        problem=problem,
        suspect_reason=workdir.suspect_reason(),
    )
    return seen, comparison


def recover_sinks(
    sinks: Mapping[str, NamedSink],
    newest: CheckpointManifest | None,
    pipeline: str,
    generation: int,
    doubtful: CheckpointManifest | None = None,
) -> dict[str, Standing]:
    """What the sinks know; what earlier drivers staged and nobody will commit is removed on the way.

    What a damaged checkpoint has decided is spared: the plan may be to have it repaired first.
    """
    lineage = newest.own.lineage if newest else 0
    epoch = newest.epoch if newest else 0
    standings = {}
    for name, named in sinks.items():
        owed = [found.own.sinks.get(name) for found in (newest, doubtful) if found is not None and owes(found, name)]
        keep = owed[0] if owed else None
        try:
            with step("sink.recover", sink=name):
                standings[name] = named.sink.recover(Delivery(pipeline, name, lineage, epoch, generation), keep)
        except HoldfastError as error:
            raise error.within(f"Sink {name!r}, asked what it has") from error
    return standings


def owes(manifest: CheckpointManifest, sink: str) -> bool:
    """Whether the sink has not been given this checkpoint's epoch for good."""
    return manifest.sink_commit_statuses.get(sink, "Committed") != "Committed"


def finish_sinks(
    plan: RecoveryPlan, newest: CheckpointManifest, sinks: Mapping[str, NamedSink], pipeline: str, generation: int
) -> list[str]:
    """Commit what was decided and never finished, from what was staged; the sinks that have it now.

    One whose staged output is gone is left to the replay of its epoch.
    """
    finished = []
    for name in plan.unfinished:
        if name not in sinks or name not in newest.own.sinks:
            continue
        delivery = Delivery(pipeline, name, newest.own.lineage, newest.epoch, generation)
        try:
            with step("sink.commit", sink=name, epoch=newest.epoch):
                sinks[name].sink.commit(newest.own.sinks[name], delivery)
            finished.append(name)
        except StagedOutputGone:
            continue
        except HoldfastError as error:
            raise error.within(f"Sink {name!r}", unchanged=f"epoch {newest.epoch} is decided and still owed") from error
    return finished


def apply_to_workdir(
    plan: RecoveryPlan,
    looked: Looked,
    workdir: Workdir,
    capture: WorkdirSnapshotter,
    store: CheckpointStore,
    owner: WorkdirOwner,
) -> None:
    """Make the workdir what the plan says, and tell the capture what of it the store has.

    The lease is looked at before anything goes: a driver that was frozen until now must not touch its successor's.
    """
    try:
        store.check_lease()
        workdir.sweep()
        _carry_out(plan, looked, workdir, capture, store, owner)
    except OSError as error:
        raise Unavailable(
            f"The workdir {workdir.home} cannot be made ready: {error.strerror or error}.",
            code="workdir.disk",
            about=str(workdir.home),
            unchanged="the store and every sink",
            next_step="make room or let this user write there, or pass another workdir; then start again",
        ) from error


def _carry_out(
    plan: RecoveryPlan,
    looked: Looked,
    workdir: Workdir,
    capture: WorkdirSnapshotter,
    store: CheckpointStore,
    owner: WorkdirOwner,
) -> None:
    newest = looked.observed.newest
    if plan.workdir == "begin":
        workdir.discard(store.check_lease)
        workdir.make(owner)
        capture.begin({}, [])
    elif plan.workdir == "rebuild":
        assert newest is not None
        contents = restore(workdir, store.objects, newest, owner, store.check_lease)
        capture.begin(contents.holders, contents.order)
    else:
        assert looked.comparison is not None
        workdir.make(owner)
        readdress(workdir)
        same: dict[str, BatchObject] = looked.comparison.same
        capture.begin(same, looked.comparison.contents.order)
