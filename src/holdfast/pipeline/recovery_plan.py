"""How a pipeline starts: from an observation of store, workdir and sinks to a plan that can be shown. Pure.

Everything that would lose or repeat rows is an error that says what to do; everything else is a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from holdfast.checkpoints.manifest import BatchObject, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.sinks.sink import SinkProgress

OnChange = Literal["fail", "accept", "reset"]
WorkdirAction = Literal["keep", "rebuild", "begin", "adopt"]


class PipelineSpec(msgspec.Struct, frozen=True):
    """The pipeline that asks to be started."""

    pipeline: str
    pipeline_hash: int
    sources: frozenset[str]
    sinks: frozenset[str]
    operators: frozenset[str] = frozenset()
    on_change: OnChange = "fail"
    is_deterministic: bool = True
    """Whether running a batch again gives the same rows."""
    source_order: tuple[str, ...] = ()
    """The sources as Spark's log has them: by place."""
    accepts_loss: bool = True
    """Whether on_change="accept" goes for sinks that have lost epochs, too."""
    anew_after: int = 0
    """No checkpoint up to this one is resumed from: the pipeline begins again under a new lineage, and owes nothing."""


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
    """Where the pipeline that marked it keeps its checkpoints."""
    suspect_reason: str | None = None
    """What Spark said when it last gave up on it, though nothing is known to be wrong with it."""


class Observation(msgspec.Struct, frozen=True):
    """Everything a plan is made from."""

    store: str
    newest: CheckpointManifest | None
    workdir: WorkdirState
    skipped: list[tuple[int, str]] = []
    """Newer checkpoints that cannot be trusted, and why."""
    sinks: dict[str, SinkProgress] = {}
    """What the sinks themselves know."""
    held: dict[str, BatchObject] = {}
    """The files of the workdir that the newest checkpoint holds as they are, each with its batch object."""
    doubtful: CheckpointManifest | None = None
    """The newest checkpoint of all, if it is readable but not valid.

    Sinks keep its staged output, in case it is repaired.
    """


class RecoveryPlan(msgspec.Struct, frozen=True):
    """What a start will do."""

    lineage: int
    workdir: WorkdirAction
    why: str
    """Why the workdir is treated so."""
    checkpoint_id: int | None
    delivered: int
    """The last epoch that was decided; the next one follows it."""
    replayed: int | None = None
    """The batch that Spark will run once more for its state."""
    owed_sinks: tuple[str, ...] = ()
    """Sinks that still owe the last epoch."""
    notes: tuple[str, ...] = ()

    def words(self) -> Iterator[str]:
        """The plan, a sentence per action."""
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
    """Decide how to start. Raises where going on would lose or repeat rows, or touch what is not ours."""
    newest = seen.newest
    change = _check_change(seen, spec)
    if newest is None:
        return _begin(seen)
    if change and spec.on_change == "reset":
        note = "sinks that append get every row once more. Take on_change='reset' out now."
        return _begin_anew(seen, newest, f"{change}, and on_change is 'reset'", note, _owed_sinks(newest, spec))
    if newest.checkpoint_id <= spec.anew_after:
        return _begin_anew(seen, newest, "it cannot resume, and is to start over", "the results are made anew.")
    return _resume(seen, newest, spec, change)


def check_start(seen: Observation, spec: PipelineSpec) -> int:
    """Refuse what can be refused while another driver may be at work; the lineage that a start will most likely have.

    Where store and workdir stand is not asked: they move while we look.
    """
    newest = seen.newest
    change = _check_change(seen, spec)
    if newest is None:
        return 0
    if (change and spec.on_change == "reset") or newest.checkpoint_id <= spec.anew_after:
        return newest.own.lineage + 1
    _check_places(newest, spec)
    return newest.own.lineage


def _check_change(seen: Observation, spec: PipelineSpec) -> str | None:
    """What changed since the newest checkpoint. `Invalid` if it changed and on_change is 'fail'."""
    _check_belongings(seen, spec)
    change = _change(seen.newest, spec)
    if seen.newest is not None and change and spec.on_change == "fail":
        raise _changed(seen.newest, change, seen)
    return change


def _check_belongings(seen: Observation, spec: PipelineSpec) -> None:
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
    if workdir.pipeline is not None:  # known: the store may have been moved or copied since
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


def _change(newest: CheckpointManifest | None, spec: PipelineSpec) -> str | None:
    """What of the pipeline is not as it was, in words."""
    if newest is None:
        return None
    found = []
    for kind, now, before in (
        ("source", spec.sources, set(newest.source_names)),
        ("sink", spec.sinks, set(newest.sink_names)),
    ):
        found += [f"{kind} {name!r} is new" for name in sorted(now - before)]
        found += [f"{kind} {name!r} is gone" for name in sorted(before - now)]
    if not found and newest.pipeline_hash != spec.pipeline_hash:
        spark = newest.own.runtime.get("spark")
        found.append(f"the query or a sink's settings differ (the checkpoint was written with Spark {spark})")
    return "; ".join(found) or None


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
    seen: Observation, newest: CheckpointManifest, why: str, note: str, owed_sinks: tuple[str, ...] = ()
) -> RecoveryPlan:
    known = [progress.lineage for progress in seen.sinks.values() if progress.lineage is not None]
    lineage = max([newest.own.lineage, *known]) + 1
    notes = (f"Everything is read again, and {note}",)
    return RecoveryPlan(lineage, "begin", why, None, 0, owed_sinks=owed_sinks, notes=notes)


def _resume(seen: Observation, newest: CheckpointManifest, spec: PipelineSpec, change: str | None) -> RecoveryPlan:
    lineage, batch = newest.own.lineage, newest.wal_position
    notes = [f"Checkpoint {number} is skipped: {why}." for number, why in seen.skipped]
    if change:
        notes.append(f"The pipeline has changed ({change}), and on_change is 'accept'.")
    _check_places(newest, spec)
    owed_sinks = _owed_sinks(newest, spec)
    action, why = _workdir_action(seen.workdir, batch)
    known = {name: progress for name, progress in seen.sinks.items() if progress.is_known}
    if action == "adopt" and not _have_all(known, seen.workdir.committed + 1, explained=bool(seen.skipped)):
        action, why = "rebuild", f"it is at batch {seen.workdir.committed}, and the sinks are not"
    if action == "keep" and seen.workdir.suspect_reason and not _any_ahead(known, newest.epoch):
        action, why = "rebuild", f"Spark could not go on from it: {seen.workdir.suspect_reason}"
    if action == "adopt":
        _check_adoptable(seen, newest, spec)
        delivered = seen.workdir.committed + 1
        planned_ahead = seen.workdir.planned > seen.workdir.committed
        _check_sinks(seen.sinks, seen.store, lineage, delivered + planned_ahead)
        if planned_ahead and not spec.is_deterministic:
            _check_agreement(seen.sinks, delivered)
        return RecoveryPlan(lineage, "adopt", why, newest.checkpoint_id, delivered, notes=tuple(notes))
    planned_ahead = action == "keep" and seen.workdir.planned > batch
    _check_sinks(seen.sinks, seen.store, lineage, newest.epoch + planned_ahead)
    if planned_ahead and not spec.is_deterministic:
        _check_agreement(seen.sinks, newest.epoch)
    is_done = action == "keep" and seen.workdir.committed >= batch
    notes += _set_back(known, newest, spec)
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


def _check_places(newest: CheckpointManifest, spec: PipelineSpec) -> None:
    """Spark's log knows sources by their place only: one that moved would go on from the offsets of another."""
    recorded = tuple(newest.own.runtime.get("sources", ()))
    if recorded and spec.source_order and recorded != spec.source_order:
        raise Invalid(
            f"The sources were {', '.join(recorded)} in this order, and are {', '.join(spec.source_order)} now: each "
            "would go on from the offsets of the one that had its place.",
            code="pipeline.source-order",
            about=f"checkpoint {newest.checkpoint_id}",
            unchanged="the store, the workdir and every sink",
            next_step="build the query with its sources in the order they had, or pass on_change='reset'",
        )


def _owed_sinks(newest: CheckpointManifest, spec: PipelineSpec) -> tuple[str, ...]:
    """The sinks that owe the last epoch. `Invalid` if the pipeline has lost one of them: the epoch would be dropped."""
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
        unchanged="the store, the workdir and every sink",
        next_step="start once with the pipeline as it was, until that epoch is done; then change it",
    )


def _workdir_action(workdir: WorkdirState, batch: int) -> tuple[WorkdirAction, str]:
    """Whether Spark can go on from this workdir after `batch` was decided."""
    if workdir.is_empty:
        return "rebuild", "it is gone"
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


def _have_all(sinks: Mapping[str, SinkProgress], epoch: int, *, explained: bool) -> bool:
    """Whether every sink has what the workdir has behind it; if none can tell, damaged checkpoints must explain it."""
    return all((progress.committed or 0) >= epoch for progress in sinks.values()) and (bool(sinks) or explained)


def _any_ahead(sinks: Mapping[str, SinkProgress], epoch: int) -> bool:
    return any((progress.committed or 0) > epoch for progress in sinks.values())


def _check_agreement(sinks: Mapping[str, SinkProgress], delivered: int) -> None:
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


def _set_back(sinks: Mapping[str, SinkProgress], newest: CheckpointManifest, spec: PipelineSpec) -> list[str]:
    """A sink that has lost epochs: not mounted, dropped, restored from a copy. Going on would hide that."""
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


def _changed(newest: CheckpointManifest, change: str, seen: Observation) -> HoldfastError:
    return Invalid(
        f"The pipeline has changed since checkpoint {newest.checkpoint_id}: {change}.",
        code="pipeline.changed",
        about=seen.store,
        unchanged="the store, the workdir and every sink",
        next_step="run it as it was, or pass on_change='accept' to go on from the same state, "
        "or on_change='reset' to begin again under a new lineage",
    )
