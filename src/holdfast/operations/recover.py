"""What a start of the pipeline would do, told from store and workdir alone; and the workdir rebuilt, where asked."""

from __future__ import annotations

import os
import socket
from typing import Any

import msgspec

from holdfast.checkpoints import RecoveryReport
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Conflict, HoldfastError, Invalid, Unavailable
from holdfast.pipeline.recovery import look, look_at_workdir
from holdfast.pipeline.recovery_plan import Observed, Plan, Wanted, plan_recovery
from holdfast.pipeline.workdir.fence import close_entrances
from holdfast.pipeline.workdir.restore import rebuild
from holdfast.pipeline.workdir.workdir import Belonging, Workdir
from holdfast.status.checkpoints import Opened
from holdfast.storage.objects import LocalObjects


class Outlook(msgspec.Struct, frozen=True):
    """What would happen at a start, as far as it can be told without Spark and without asking the sinks."""

    pipeline: str
    workdir: str
    plan: Plan | None
    refusal: HoldfastError | None
    """Why a start would stop before it changes anything."""

    def as_json(self) -> dict[str, Any]:
        plan, refusal = self.plan, self.refusal
        return {
            "pipeline": self.pipeline,
            "workdir": self.workdir,
            "words": list(plan.words()) if plan else [],
            "workdir_action": plan.workdir if plan else None,
            "lineage": plan.lineage if plan else None,
            "replayed_epoch": plan.replayed + 1 if plan and plan.replayed is not None else None,
            "next_epoch": plan.delivered + 1 if plan else None,
            "owing_sinks": list(plan.unfinished) if plan else [],
            "refusal": None
            if refusal is None
            else {"kind": type(refusal).__name__, "code": refusal.code, "message": refusal.message},
        }


def look_ahead(
    opened: Opened, chosen: CheckpointManifest | None, report: RecoveryReport, workdir: str | None
) -> Outlook | None:
    """The plan for a start from `chosen`; None if this is no store of a pipeline, or if nothing could be planned."""
    place = workdir or _recorded_workdir(opened, chosen)
    if place is None or (chosen is None and report.skipped):
        return None
    try:
        found = Workdir(place)
        pipeline = _pipeline(chosen, found)
        if pipeline is None:
            return None
        seen, _ = look_at_workdir(found, opened.store, chosen)
        observed = Observed(opened.address, chosen, seen, report.skipped)
        return Outlook(pipeline, seen.path, plan_recovery(observed, _as_it_was(pipeline, chosen)), None)
    except HoldfastError as error:
        return Outlook(_pipeline(chosen, None) or "", place, None, error)
    except OSError as error:
        return Outlook(_pipeline(chosen, None) or "", place, None, _not_seen(place, error))


def rebuild_workdir(opened: Opened, outlook: Outlook, checkpoint_id: int) -> int:
    """Take the pipeline over and rebuild the workdir; the new generation.

    Guarantees: a driver that still runs is fenced before anything is changed, and what was agreed to is what happens:
    if the pipeline went on meanwhile it is `Conflict` and the workdir stays.
    """
    workdir = Workdir(outlook.workdir)
    lease = opened.store.claim(f"holdfast recover on {socket.gethostname()}:{os.getpid()}")
    looked = look(opened.store, workdir)
    newest = looked.observed.newest
    if newest is None or newest.checkpoint_id != checkpoint_id:
        raise Conflict(
            f"The pipeline went on to checkpoint {newest.checkpoint_id if newest else '-'} meanwhile.",
            code="recover.moved",
            about=opened.address,
            unchanged="the workdir; the pipeline has been taken over",
            next_step=opened.hint("recover", "--dry-run"),
        )
    plan_recovery(looked.observed, _as_it_was(outlook.pipeline, newest))
    still_ours = opened.store.check_lease
    workdir.home.parent.mkdir(parents=True, exist_ok=True)
    close_entrances(workdir, lease.generation, still_ours)
    rebuild(workdir, opened.store.objects, newest, Belonging(outlook.pipeline, opened.address), still_ours)
    return lease.generation


def _recorded_workdir(opened: Opened, chosen: CheckpointManifest | None) -> str | None:
    if chosen is not None:
        return chosen.table_store_checkpoint_path if _pipeline(chosen, None) else None
    objects = opened.store.objects
    usual = os.path.join(objects.root, "workdir") if isinstance(objects, LocalObjects) else ""
    return usual if usual and os.path.isdir(usual) else None


def _pipeline(chosen: CheckpointManifest | None, workdir: Workdir | None) -> str | None:
    if chosen is not None:
        name = chosen.own.runtime.get("pipeline")
        return name if isinstance(name, str) else None
    belonging = workdir.belonging() if workdir else None
    return belonging.pipeline if belonging else None


def _as_it_was(pipeline: str, chosen: CheckpointManifest | None) -> Wanted:
    """The pipeline as the checkpoint knows it: whether its code has changed since is found out at the start."""
    if chosen is None:
        return Wanted(pipeline, 0, frozenset(), frozenset())
    return Wanted(
        pipeline,
        chosen.pipeline_hash or 0,
        frozenset(chosen.source_names),
        frozenset(chosen.sink_names),
        frozenset(chosen.operator_states),
    )


def _not_seen(place: str, error: OSError) -> HoldfastError:
    kind = Invalid if isinstance(error, NotADirectoryError) else Unavailable
    return kind(
        f"The workdir {place} cannot be looked at: {error.strerror or error}.",
        code="workdir.unreadable",
        about=place,
        unchanged="everything",
        next_step="run it where the workdir is, as a user who may read it",
    )
