"""Recovery from outside a pipeline: the checkpoint it would resume from, a forecast of its start, and a repair plan.

The plan repairs `latest` and the workdir. Needs only the store and the workdir: neither Spark nor any sink.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from holdfast.checkpoints import RecoveryReport
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.operations.plan import Outcome, Progress, Table
from holdfast.pipeline.recovery import observe, observe_workdir
from holdfast.pipeline.recovery_plan import Observation, PipelineSpec, RecoveryPlan, plan_recovery
from holdfast.pipeline.workdir.open import open_workdir
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.restore import restore
from holdfast.pipeline.workdir.stamps import write_stamps
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.status.checkpoints import LatestPointer, OpenedStore, observe_pointer
from holdfast.storage.objects import LocalObjects


class StartForecast(msgspec.Struct, frozen=True):
    """What a start of the pipeline would do, as far as the store and the workdir tell."""

    pipeline: str
    workdir: str
    plan: RecoveryPlan | None
    refusal: HoldfastError | None
    """Why a start would stop before it changes anything."""

    def as_json(self) -> dict[str, Any]:
        plan, refusal = self.plan, self.refusal
        return {
            "pipeline": self.pipeline,
            "workdir": self.workdir,
            "words": list(plan.lines()) if plan else [],
            "workdir_action": plan.workdir if plan else None,
            "lineage": plan.lineage if plan else None,
            "replayed_epoch": plan.replayed + 1 if plan and plan.replayed is not None else None,
            "next_epoch": plan.delivered + 1 if plan else None,
            "owing_sinks": list(plan.owed_sinks) if plan else [],
            "refusal": None
            if refusal is None
            else {"kind": type(refusal).__name__, "code": refusal.code, "message": refusal.message},
        }


class RecoveryStatus(msgspec.Struct, frozen=True):
    """The walk back from the newest checkpoint to the first valid one, and the forecast of a start from it."""

    opened: OpenedStore
    report: RecoveryReport
    chosen: CheckpointManifest | None
    latest: LatestPointer
    forecast: StartForecast | None
    """None if the store does not belong to a pipeline, or if nothing could be planned."""

    @property
    def exit_code(self) -> int:
        if self.report.unreadable:
            return Unavailable.exit_code
        if self.chosen is None and self.report.skipped:
            return Corrupt.exit_code
        return self.forecast.refusal.exit_code if self.forecast and self.forecast.refusal else 0

    @property
    def why_no_forecast(self) -> str:
        """Why there is no forecast for a workdir."""
        if self.report.unreadable:
            return "the newest checkpoint could not be read"
        if self.chosen is None:
            return "there is no checkpoint to rebuild one from"
        if self.chosen.own.runtime.get("pipeline"):
            return "the checkpoint does not say where it was; pass --workdir"
        return "no pipeline of Holdfast's wrote these checkpoints"

    def plan(self, *, rebuild_workdir: bool) -> RepairPlan:
        """The repair plan. `Invalid` if it would remove a workdir that is ahead of every checkpoint."""
        if self.chosen is None or self.report.unreadable:
            return RepairPlan(self.opened)
        number = self.chosen.checkpoint_id
        set_latest = number if self.latest.names != number else None
        forecast = self.forecast
        why = self.latest.problem or "it names another"
        if not rebuild_workdir or forecast is None or forecast.plan is None:
            return RepairPlan(self.opened, set_latest, why)
        if forecast.plan.workdir == "adopt":
            raise Invalid(
                f"The workdir is ahead of checkpoint {number}, the newest trusted one, "
                "and is the only copy of what came after.",
                code="recover.workdir-ahead",
                about=forecast.workdir,
                unchanged="the store, the workdir and every sink",
                next_step="start the pipeline: it goes on from the workdir",
            )
        return RepairPlan(self.opened, set_latest, why, number, forecast)

    def as_json(self) -> dict[str, Any]:
        report, chosen = self.report, self.chosen
        return {
            "chosen_id": report.chosen_id,
            "examined": report.examined,
            "elapsed_seconds": report.elapsed,
            "skipped": [
                {"checkpoint_id": number, "reason": why, "unreadable": number in report.unreadable}
                for number, why in report.skipped
            ],
            "resume": None if chosen is None else _resume_json(chosen),
            "latest": self.latest.as_json(),
            "start": self.forecast.as_json() if self.forecast else None,
        }


class RepairPlan(msgspec.Struct, frozen=True):
    """A plan to set `latest` and to rebuild the workdir.

    `apply` fences a driver that still runs before it touches the workdir. It raises `Conflict`, and leaves the workdir
    alone, if the pipeline saved another checkpoint meanwhile.
    """

    opened: OpenedStore
    set_latest: int | None = None
    why: str = ""
    """The problem with `latest`."""
    rebuild_from: int | None = None
    forecast: StartForecast | None = None

    activity: ClassVar[str] = "recovering"
    amount: ClassVar[int] = 0
    warnings: ClassVar[Sequence[str]] = ()

    @property
    def is_empty(self) -> bool:
        return self.set_latest is None and self.rebuild_from is None

    @property
    def question(self) -> str:
        parts = [f"set latest to {self.set_latest}"] if self.set_latest is not None else []
        parts += ["take the pipeline over and rebuild the workdir"] if self.rebuild_from is not None else []
        text = " and ".join(parts)
        return f"{text[:1].upper()}{text[1:]}?"

    def lines(self) -> Iterator[str | Table]:
        if self.set_latest is not None:
            yield f"plan: set latest to {self.set_latest} ({self.why})"
        if self.forecast is not None:
            what = f"rebuild {self.forecast.workdir} from checkpoint {self.rebuild_from}"
            yield f"plan: take the pipeline over and {what} (a driver that still runs is stopped)"

    def as_json(self) -> list[dict[str, Any]]:
        actions = (("set-latest", self.set_latest), ("rebuild-workdir", self.rebuild_from))
        return [{"action": action, "checkpoint_id": number} for action, number in actions if number is not None]

    def apply(self, progress: Progress | None = None) -> Outcome:
        """The result is True if anything was changed."""
        lines = []
        changed = False
        if self.set_latest is not None:
            changed = self.opened.store.repair_pointer(self.set_latest)
            lines.append(f"latest now names checkpoint {self.set_latest}." if changed else "latest named it already.")
        if self.rebuild_from is not None and self.forecast is not None:
            generation = _rebuild_workdir(self.opened, self.forecast, self.rebuild_from)
            lines.append(f"{self.forecast.workdir} is rebuilt, under generation {generation}.")
            changed = True
        return Outcome(lines, result=changed)


def examine(
    opened: OpenedStore, *, workdir: str | None = None, progress: Callable[[int], None] | None = None
) -> RecoveryStatus:
    """Walk back to the first valid checkpoint, reading every byte of each, and forecast a start from it.

    `workdir` overrides the path of Spark's workdir that the checkpoint records; `progress` is called with the number
    of bytes read.
    """
    report = opened.store.recover_latest_validated(progress=progress)
    damaged = [number for number, _ in report.skipped]
    latest = observe_pointer(opened.catalog, opened.store.list_ids(), damaged)
    chosen = _load_chosen(opened, report)
    forecast = None if report.unreadable else forecast_start(opened, chosen, report, workdir)
    return RecoveryStatus(opened, report, chosen, latest, forecast)


def _load_chosen(opened: OpenedStore, report: RecoveryReport) -> CheckpointManifest | None:
    if report.chosen_id is None:
        return None
    manifest = opened.store.load_by_id(report.chosen_id)
    if manifest is None:
        raise Conflict(
            f"Checkpoint {report.chosen_id} was removed while it was being looked at.",
            about=opened.address,
            unchanged="the store",
            next_step="run it again; another process is pruning",
        )
    return manifest


def _resume_json(chosen: CheckpointManifest) -> dict[str, Any]:
    return {
        "checkpoint_id": chosen.checkpoint_id,
        "epoch": chosen.epoch,
        "timestamp_ms": chosen.timestamp_ms,
        "source_offsets": {name: source.offsets for name, source in chosen.source_offsets.items()},
        "watermark": chosen.watermark,
        "sink_commit_statuses": msgspec.to_builtins(chosen.sink_commit_statuses),
    }


def forecast_start(
    opened: OpenedStore, chosen: CheckpointManifest | None, report: RecoveryReport, workdir: str | None
) -> StartForecast | None:
    """Forecast a start from `chosen`; None if the store does not belong to a pipeline, or if nothing can be planned."""
    path = workdir or _recorded_workdir(opened, chosen)
    if path is None or (chosen is None and report.skipped):
        return None
    try:
        found = open_workdir(path, options=opened.options).as_found()
        pipeline = _pipeline(chosen, found)
        if pipeline is None:
            return None
        found.check_replaceable()
        seen, _ = observe_workdir(found, opened.store, chosen)
        observed = Observation(opened.address, chosen, seen, report.skipped)
        return StartForecast(pipeline, seen.path, plan_recovery(observed, _recorded_spec(pipeline, chosen)), None)
    except HoldfastError as error:
        return StartForecast(_pipeline(chosen, None) or "", path, None, error)
    except OSError as error:
        return StartForecast(_pipeline(chosen, None) or "", path, None, _workdir_unreadable(path, error))


def _rebuild_workdir(opened: OpenedStore, forecast: StartForecast, checkpoint_id: int) -> int:
    """Take the pipeline over and rebuild the workdir from this checkpoint; returns the new generation.

    Guarantees: a driver that still runs is fenced before anything is changed; if the pipeline saved another checkpoint
    meanwhile, `Conflict` is raised and the workdir stays. `Invalid`, and nothing is claimed, if the workdir cannot be
    replaced by renaming.
    """
    workdir = open_workdir(forecast.workdir, options=opened.options)
    workdir.check_replaceable()
    lease = opened.store.claim(f"holdfast recover on {socket.gethostname()}:{os.getpid()}")
    seen = observe(opened.store, workdir)
    newest = seen.newest
    if newest is None or newest.checkpoint_id != checkpoint_id:
        raise Conflict(
            f"The pipeline went on to checkpoint {newest.checkpoint_id if newest else '-'} meanwhile.",
            code="recover.moved",
            about=opened.address,
            unchanged="the workdir; the pipeline has been taken over",
            next_step=opened.hint("recover", "--dry-run"),
        )
    plan_recovery(seen, _recorded_spec(forecast.pipeline, newest))
    still_ours = opened.store.check_lease
    workdir = workdir.taken_over(lease.generation, still_ours)
    owner = WorkdirOwner(forecast.pipeline, opened.address)
    held = restore(workdir, opened.store.objects, newest, owner, still_ours)
    if not workdir.vouches_after_failure:  # without stamps the next start would not use it
        write_stamps(workdir, opened.store.objects, newest, held, ())
    return lease.generation


def _recorded_workdir(opened: OpenedStore, chosen: CheckpointManifest | None) -> str | None:
    if chosen is not None:
        return chosen.table_store_checkpoint_path if _pipeline(chosen, None) else None
    objects = opened.store.objects
    usual = os.path.join(objects.root, "workdir") if isinstance(objects, LocalObjects) else ""
    return usual if usual and os.path.isdir(usual) else None


def _pipeline(chosen: CheckpointManifest | None, workdir: Workdir | None) -> str | None:
    if chosen is not None:
        name = chosen.own.runtime.get("pipeline")
        return name if isinstance(name, str) else None
    owner = workdir.owner() if workdir else None
    return owner.pipeline if owner else None


def _recorded_spec(pipeline: str, chosen: CheckpointManifest | None) -> PipelineSpec:
    """The pipeline as the checkpoint recorded it. Only a start can tell whether its code has changed since."""
    if chosen is None:
        return PipelineSpec(pipeline, 0, frozenset(), frozenset())
    return PipelineSpec(
        pipeline,
        chosen.pipeline_hash or 0,
        frozenset(chosen.source_names),
        frozenset(chosen.sink_names),
        frozenset(chosen.operator_states),
    )


def _workdir_unreadable(path: str, error: OSError) -> HoldfastError:
    kind = Invalid if isinstance(error, NotADirectoryError) else Unavailable
    return kind(
        f"The workdir {path} cannot be read: {error.strerror or error}.",
        code="workdir.unreadable",
        about=path,
        unchanged="everything",
        next_step="run it where the workdir is, as a user who may read it",
    )
