"""How a pipeline starts: from an observation of store, workdir and sinks to a plan that can be shown. Pure.

Everything that would lose or repeat rows is an error that says what to do; everything else is a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from holdfast.checkpoints.manifest import BatchEntry, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.pipeline.query.change import Difference, QueryChange
from holdfast.pipeline.query.compare import compare, sink_names, source_names
from holdfast.pipeline.query.description import Description, recorded_description
from holdfast.sinks.sink import SinkProgress

OnChange = Literal["fail", "accept", "reset"]
WorkdirAction = Literal["keep", "rebuild", "begin", "adopt"]


class PipelineSpec(msgspec.Struct, frozen=True):
    """The facts about the pipeline to be started."""

    pipeline: str
    pipeline_hash: int
    sources: frozenset[str]
    sinks: frozenset[str]
    operators: frozenset[str] = frozenset()
    on_change: OnChange = "fail"
    is_deterministic: bool = True
    """Whether running a batch again gives the same rows."""
    source_order: tuple[str, ...] = ()
    """The sources in the order of Spark's log, which knows them by position."""
    accepts_loss: bool = True
    """Whether on_change="accept" also accepts that a sink has lost epochs."""
    anew_after: int = 0
    """Never resume from a checkpoint up to this id: begin again under a new lineage, with nothing owed."""
    description: Description | None = None
    """What the pipeline is; None if only its names are known."""
    plan_hash: int | None = None
    """Its hash as manifests without a description have it."""


class WorkdirState(msgspec.Struct, frozen=True):
    """The state of the workdir as observed."""

    path: str
    is_empty: bool = True
    pipeline: str | None = None
    """The pipeline named in its owner file; None without one."""
    query_id: str | None = None
    looks_like_spark: bool = True
    """Whether everything in it has a name that Spark's checkpoints have."""
    planned: int = -1
    committed: int = -1
    problem: str | None = None
    """Why Spark could not go on from it, or which file differs from the newest checkpoint."""
    store: str | None = None
    """The checkpoint store named in its owner file; None without one."""
    suspect_reason: str | None = None
    """Spark's error when it last failed on this workdir, though no damage was found in it."""
    absence: str = "it is gone"
    """Why it is empty, where there was one."""


class Observation(msgspec.Struct, frozen=True):
    """Everything a plan is made from."""

    store: str
    newest: CheckpointManifest | None
    workdir: WorkdirState
    skipped: list[tuple[int, str]] = []
    """Newer checkpoints that cannot be trusted, and why."""
    sinks: dict[str, SinkProgress] = {}
    """The progress that the sinks themselves report."""
    held: dict[str, tuple[BatchEntry, ...]] = {}
    """The files of the workdir that the newest checkpoint holds as they are, each with its entries in batch objects."""
    doubtful: CheckpointManifest | None = None
    """The newest checkpoint of all, if it is readable but not valid.

    Sinks keep its staged output, in case it is repaired.
    """


class RecoveryPlan(msgspec.Struct, frozen=True):
    """What a start will do."""

    lineage: int
    workdir: WorkdirAction
    why: str
    """The reason for this action on the workdir."""
    checkpoint_id: int | None
    delivered: int
    """The last epoch that was decided; the next one follows it."""
    replayed: int | None = None
    """The batch that Spark will run once more for its state."""
    owed_sinks: tuple[str, ...] = ()
    """Sinks that still owe the last epoch."""
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The plan for people, a sentence per action; see `operations.plan.Plan`."""
        yield from self.notes
        if self.checkpoint_id is None:
            yield f"The pipeline begins with epoch {self.delivered + 1} of lineage {self.lineage}."
        else:
            yield f"Resume from checkpoint {self.checkpoint_id}, epoch {self.delivered}, lineage {self.lineage}."
        yield {
            "keep": "Go on with the workdir as it is",
            "rebuild": f"Rebuild the workdir from checkpoint {self.checkpoint_id}",
            "begin": "Begin with an empty workdir",
            "adopt": "Go on from the workdir, which is ahead of the newest checkpoint that can be trusted",
        }[self.workdir] + f": {self.why}."
        for name in self.owed_sinks:
            yield f"Finish the last epoch in sink {name!r} from what was staged for it."
        if self.replayed is not None:
            yield (
                f"Spark runs batch {self.replayed} (epoch {self.replayed + 1}) once more for its state; "
                "sinks that have it are skipped."
            )


def plan_recovery(seen: Observation, spec: PipelineSpec) -> RecoveryPlan:
    """Decide how to start. Raises if going on would lose or repeat rows, or change files that are not ours."""
    newest = seen.newest
    change = _check_change(seen, spec)
    if newest is None and seen.skipped:  # all of it is damaged, and the pipeline is to start over
        return _begin_anew(seen, seen.doubtful, "no checkpoint can be trusted", "the results are made anew.")
    if newest is None:
        return _begin(seen)
    if change.asks and spec.on_change == "reset":
        note = "sinks that append get every row once more. Take on_change='reset' out now."
        return _begin_anew(seen, newest, f"{change.what}, and on_change is 'reset'", note, _owed_sinks(newest, spec))
    if newest.checkpoint_id <= spec.anew_after:
        return _begin_anew(seen, newest, "it cannot resume, and is to start over", "the results are made anew.")
    return _resume(seen, newest, spec, change)


def check_start(seen: Observation, spec: PipelineSpec) -> int:
    """Refuse a bad start before the claim, while another driver may be running. Returns the most likely lineage.

    The positions of store and workdir are not checked: a running driver moves them.
    """
    newest = seen.newest
    change = _check_change(seen, spec)
    if newest is None:
        return 0
    begins_anew = (change.asks and spec.on_change == "reset") or newest.checkpoint_id <= spec.anew_after
    return newest.own.lineage + begins_anew


def _check_change(seen: Observation, spec: PipelineSpec) -> QueryChange:
    """How the pipeline changed since the newest checkpoint. `Invalid` if on_change does not allow it."""
    _check_owners(seen, spec)
    newest = seen.newest
    if newest is None:
        return QueryChange()
    change = QueryChange(_differences(newest, spec))
    resumes = spec.on_change == "accept" and newest.checkpoint_id > spec.anew_after
    if change.asks and (spec.on_change == "fail" or (resumes and change.blockers)):
        raise _changed(newest, change, seen)
    return change


def _differences(newest: CheckpointManifest, spec: PipelineSpec) -> list[Difference]:
    before = recorded_description(newest.own.runtime)
    if before is not None and spec.description is not None:
        return compare(before, spec.description)
    return _differences_by_name(newest, spec)


def _differences_by_name(newest: CheckpointManifest, spec: PipelineSpec) -> list[Difference]:
    """What a manifest without a description tells: names, and one hash over the text of the whole plan."""
    before, now = tuple(newest.own.runtime.get("sources", ())), spec.source_order
    if not before or not now:
        before, now = tuple(sorted(newest.source_names)), tuple(sorted(spec.sources))
    found = [*source_names(before, now), *sink_names(newest.sink_names, spec.sinks)]
    if not found and newest.pipeline_hash not in {spec.pipeline_hash, spec.plan_hash} - {None}:
        spark = newest.own.runtime.get("spark")
        follows = f"in what is not on record; the checkpoint was written with Spark {spark}"
        found.append(Difference("the query or a sink's settings differ", follows, "accept"))
    return found


def _check_owners(seen: Observation, spec: PipelineSpec) -> None:
    """Refuse a store or a directory that belongs to something else."""
    newest = seen.newest
    known = newest.own.runtime.get("pipeline") if newest else None
    if newest is not None and known != spec.pipeline:
        raise Invalid(
            f"The checkpoints in {seen.store} belong to pipeline {known!r}, this is {spec.pipeline!r}."
            if known
            else f"The checkpoints in {seen.store} were not written by a pipeline of Holdfast's.",
            code="store.other-pipeline",
            about=seen.store,
            unchanged="the store, the workdir and every sink",
            next_step="give this pipeline an address of its own",
        )
    workdir = seen.workdir
    if workdir.is_empty:
        return
    is_known = workdir.query_id is not None and workdir.query_id == (newest and newest.own.runtime.get("query_id"))
    if workdir.pipeline is not None:  # `is_known` suffices: the store may have been moved or copied since
        is_ours = workdir.pipeline == spec.pipeline and (workdir.store in (None, seen.store) or is_known)
    else:
        is_ours = is_known or (newest is not None and workdir.query_id is None and workdir.looks_like_spark)
    if not is_ours:
        store = f" with checkpoints in {workdir.store}" if workdir.store not in (None, seen.store) else ""
        whose = f"pipeline {workdir.pipeline!r}{store}" if workdir.pipeline else "something else"
        raise Invalid(
            f"The workdir {workdir.path} belongs to {whose}, not to pipeline {spec.pipeline!r}.",
            code="workdir.other-pipeline",
            about=workdir.path,
            unchanged="the workdir, the store and every sink",
            next_step="pass another workdir",
        )


def _begin(seen: Observation) -> RecoveryPlan:
    if seen.workdir.committed >= 0:
        raise Corrupt(
            f"The workdir {seen.workdir.path} has {seen.workdir.committed + 1} epochs behind it, and {seen.store} has "
            "no checkpoint of any.",
            code="store.lost",
            about=seen.store,
            unchanged="the workdir, the store and every sink",
            next_step="restore the store from a copy; to begin anew, use another address and remove the workdir",
        )
    _check_sinks(seen.sinks, seen.store, lineage=0, allowed=0)
    why = "there is none" if seen.workdir.is_empty else "no epoch was decided in the one that is there"
    return RecoveryPlan(0, "begin", why, None, 0)


def _begin_anew(
    seen: Observation, newest: CheckpointManifest | None, why: str, note: str, owed_sinks: tuple[str, ...] = ()
) -> RecoveryPlan:
    known = [progress.lineage for progress in seen.sinks.values() if progress.lineage is not None]
    lineage = max([newest.own.lineage if newest else 0, *known]) + 1
    notes = (f"Everything is read again, and {note}",)
    return RecoveryPlan(lineage, "begin", why, None, 0, owed_sinks=owed_sinks, notes=notes)


def _resume(seen: Observation, newest: CheckpointManifest, spec: PipelineSpec, change: QueryChange) -> RecoveryPlan:
    lineage, batch = newest.own.lineage, newest.wal_position
    notes = [f"Checkpoint {number} is skipped: {why}." for number, why in seen.skipped]
    notes += change.notes
    if change.asks:
        notes.append(f"The pipeline has changed, and on_change is 'accept': {change}.")
    owed_sinks = _owed_sinks(newest, spec)
    action, why = _workdir_action(seen.workdir, batch)
    known = {name: progress for name, progress in seen.sinks.items() if progress.is_known}
    if action == "adopt" and not _all_sinks_have(known, seen.workdir.committed + 1, explained=bool(seen.skipped)):
        action, why = "rebuild", f"it is at batch {seen.workdir.committed}, and the sinks are not"
    if action == "keep" and seen.workdir.suspect_reason and not _any_sink_ahead(known, newest.epoch):
        action, why = "rebuild", f"Spark could not go on from it: {seen.workdir.suspect_reason}"
    if action == "adopt":
        _check_adoptable(seen, newest, spec)
        delivered = seen.workdir.committed + 1
        planned_ahead = seen.workdir.planned > seen.workdir.committed
        _check_sinks(seen.sinks, seen.store, lineage, delivered + planned_ahead)
        if planned_ahead and not spec.is_deterministic:
            _check_sinks_agree(seen.sinks, delivered)
        return RecoveryPlan(lineage, "adopt", why, newest.checkpoint_id, delivered, notes=tuple(notes))
    planned_ahead = action == "keep" and seen.workdir.planned > batch
    _check_sinks(seen.sinks, seen.store, lineage, newest.epoch + planned_ahead)
    if planned_ahead and not spec.is_deterministic:
        _check_sinks_agree(seen.sinks, newest.epoch)
    is_done = action == "keep" and seen.workdir.committed >= batch
    notes += _lost_epochs(known, newest, spec)
    return RecoveryPlan(
        lineage,
        action,
        why,
        newest.checkpoint_id,
        newest.epoch,
        replayed=None if is_done else batch,
        owed_sinks=owed_sinks,
        notes=tuple(notes),
    )


def _owed_sinks(newest: CheckpointManifest, spec: PipelineSpec) -> tuple[str, ...]:
    """The sinks that owe the last epoch. `Invalid` if one is not in the pipeline any more: its epoch would be lost."""
    for name in newest.owed_sinks:
        if name not in spec.sinks:
            raise cannot_finish(name, newest)
    return newest.owed_sinks


def cannot_finish(sink: str, newest: CheckpointManifest) -> Invalid:
    """The error of a start that would drop an epoch which a sink still owes."""
    return Invalid(
        f"Sink {sink!r} still owes epoch {newest.epoch}, and this start could not deliver it.",
        code="sink.owes-epoch",
        about=f"sink {sink!r}",
        unchanged="this sink and the workdir; other sinks that owed the epoch may have it now",
        next_step="start once with the pipeline as it was, until that epoch is done; then change it",
    )


def _workdir_action(workdir: WorkdirState, batch: int) -> tuple[WorkdirAction, str]:
    """Whether Spark can go on from this workdir after `batch` was decided."""
    if workdir.is_empty:
        return "rebuild", workdir.absence
    if workdir.problem and workdir.committed <= batch:
        return "rebuild", workdir.problem
    if workdir.planned < batch:
        return "rebuild", f"it is at batch {workdir.planned}, behind batch {batch}"
    if workdir.committed < batch - 1 or not workdir.committed <= workdir.planned <= workdir.committed + 1:
        return "rebuild", f"its logs have a gap: planned {workdir.planned}, done {workdir.committed}"
    if workdir.committed > batch:
        return ("rebuild", workdir.problem) if workdir.problem else ("adopt", f"it is at batch {workdir.committed}")
    return "keep", "it matches the checkpoint"


def _check_adoptable(seen: Observation, newest: CheckpointManifest, spec: PipelineSpec) -> None:
    if spec.operators:
        raise Corrupt(
            f"The newest checkpoint that can be trusted is {newest.checkpoint_id}, epoch {newest.epoch}; Spark is "
            f"{seen.workdir.committed - newest.wal_position} epochs further, and what the operators "
            f"{', '.join(sorted(spec.operators))} held then is lost.",
            code="recovery.operators-lost",
            about=seen.store,
            unchanged="the store, the workdir and every sink",
            next_step="restore the store from a copy, or start with on_change='reset' under another name",
        )


def _check_sinks(sinks: Mapping[str, SinkProgress], store: str, lineage: int, allowed: int) -> None:
    """`Corrupt` if a sink has epochs that the store does not know: new rows under those numbers would be skipped."""
    for name, progress in sorted(sinks.items()):
        if progress.lineage is not None and progress.lineage > lineage:
            what = f"deliveries of lineage {progress.lineage}, and the store is at lineage {lineage}"
        elif progress.committed is not None and progress.committed > allowed:
            what = f"epoch {progress.committed}, and the newest valid checkpoint in {store} allows epoch {allowed}"
        else:
            continue
        raise Corrupt(
            f"Sink {name!r} has {what}: rows that come under the same number again would be taken for delivered.",
            code="sink.ahead",
            about=f"sink {name!r}",
            unchanged="the store, the workdir and every sink",
            next_step="restore the store from a copy, or give the pipeline a new name and an empty target",
        )


def _all_sinks_have(sinks: Mapping[str, SinkProgress], epoch: int, *, explained: bool) -> bool:
    """Whether every sink has `epoch`; if none can tell, damaged checkpoints must explain why the workdir is ahead."""
    return all((progress.committed or 0) >= epoch for progress in sinks.values()) and (bool(sinks) or explained)


def _any_sink_ahead(sinks: Mapping[str, SinkProgress], epoch: int) -> bool:
    return any((progress.committed or 0) > epoch for progress in sinks.values())


def _check_sinks_agree(sinks: Mapping[str, SinkProgress], delivered: int) -> None:
    """`Corrupt` if only some sinks have the next epoch and the query is not deterministic.

    The others would get different rows.
    """
    ahead = sorted(name for name, progress in sinks.items() if (progress.committed or 0) > delivered)
    if ahead and len(ahead) < len(sinks):
        raise Corrupt(
            f"Sink {ahead[0]!r} has epoch {delivered + 1} and others do not, its checkpoint cannot be trusted, and "
            "the query gives other rows each time it is run.",
            code="sink.ahead",
            about=f"sink {ahead[0]!r}",
            unchanged="the store, the workdir and every sink",
            next_step="restore the store from a copy, or take that epoch out of that sink by hand",
        )


def _lost_epochs(sinks: Mapping[str, SinkProgress], newest: CheckpointManifest, spec: PipelineSpec) -> list[str]:
    """Notes on sinks that have lost epochs (not mounted, dropped, restored from a copy); `Corrupt` unless accepted."""
    found = []
    for name, progress in sorted(sinks.items()):
        recorded = newest.sink_epochs.get(name, 0)
        if (progress.committed or 0) >= recorded:
            continue
        knows = f"epoch {progress.committed} only" if progress.committed else "no epoch"
        lost = f"Sink {name!r} itself knows of {knows}, and epoch {recorded} was committed to it"
        if spec.on_change != "accept" or not spec.accepts_loss:
            raise Corrupt(
                f"{lost}: it is not mounted, or it was emptied or set back.",
                code="sink.set-back",
                about=f"sink {name!r}",
                unchanged="the store, the workdir and every sink",
                next_step="mount or restore it; to go on without what it lost, pass on_change='accept'",
            )
        found.append(f"{lost}: what it lost is not delivered again.")
    return found


def _changed(newest: CheckpointManifest, change: QueryChange, seen: Observation) -> HoldfastError:
    blockers = change.blockers
    can_accept = "pass on_change='accept' to go on from the same state, or "
    cannot_accept = "; on_change='accept' cannot go on from there"
    return Invalid(
        f"The pipeline has changed since checkpoint {newest.checkpoint_id}: {change}.",
        code=blockers[0].code if blockers else "pipeline.changed",
        about=seen.store,
        unchanged="the store, the workdir and every sink",
        next_step=f"run it as it was, or {'' if blockers else can_accept}on_change='reset' to begin again under a new "
        f"lineage{cannot_accept if blockers else ''}",
    )
