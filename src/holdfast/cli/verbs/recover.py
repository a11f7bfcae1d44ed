"""`holdfast recover`: which checkpoint can be trusted, does `latest` say so, and what would a start do?"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.checkpoints import RecoveryReport
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.cli import pointer
from holdfast.cli.confirm import agreed
from holdfast.cli.options import on_store
from holdfast.cli.output import Cell, Output
from holdfast.cli.recover_words import show_chosen, show_no_choice, show_outlook, show_walk, why_no_outlook
from holdfast.errors import Conflict, Corrupt, Invalid, Unavailable
from holdfast.operations.recover import Outlook, look_ahead
from holdfast.operations.recover import rebuild_workdir as do_rebuild
from holdfast.status import format
from holdfast.status.checkpoints import Opened


@click.command("recover")
@on_store
@click.option("--dry-run", is_flag=True, help="Only say what would be resumed from and what would be changed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--workdir", metavar="PATH", help="Where Spark's workdir is, if not where the checkpoint says.")
@click.option("--rebuild-workdir", is_flag=True, help="Take the pipeline over and rebuild its workdir, here and now.")
def command(
    opened: Opened, output: Output, *, dry_run: bool, yes: bool, workdir: str | None, rebuild_workdir: bool
) -> int:
    """Find the newest checkpoint that can be trusted, and repair 'latest'.

    Walks back from the newest checkpoint, reading every byte of each, and stops at the first valid one. For a
    pipeline's store it also says what a start would do, as seen from this machine. The only thing that is changed
    unasked for is the pointer 'latest', if it names something else; damaged checkpoints stay. Exits 6 if every
    checkpoint is damaged, 8 if one that is newer than the chosen one could not be read.

    \b
    Example: holdfast recover /data/orders --dry-run
    """
    with output.bar("walking back", 0, unit="bytes") as bar:
        report = opened.store.recover_latest_validated(progress=bar.advance)
    latest = pointer.observe(opened.catalog, opened.store.list_ids(), [number for number, _ in report.skipped])
    show_walk(output, report)
    chosen = _load_chosen(opened, report)
    outlook = None if report.unreadable else look_ahead(opened, chosen, report, workdir)
    if chosen is None:
        show_no_choice(opened, output, report, is_refused=bool(outlook and outlook.refusal))
    else:
        show_chosen(output, chosen)
    if outlook:
        show_outlook(output, outlook, opened)
    elif workdir or rebuild_workdir:
        output.note("there is no plan for a workdir: " + why_no_outlook(report, chosen))
    work = _planned(report, chosen, latest, outlook, rebuild_workdir=rebuild_workdir)
    code = _exit_code(report, outlook)
    changed = False
    if report.unreadable:
        unread = format.listed(report.unreadable)
        output.note(f"checkpoint {unread} could not be read, which is not damage: try again before resuming elsewhere")
    elif work.is_empty:
        if chosen is not None:
            output.line()
            output.line("latest names it already: nothing to change.")
    else:
        _show_work(output, work, latest, outlook)
        if agreed(output, work.question, dry_run=dry_run, yes=yes):
            changed = _carry_out(opened, output, work, outlook)
        elif not dry_run:
            code = 2
    found = _as_json(report, chosen, latest, work, outlook, changed=changed, dry_run=dry_run)
    output.finish(opened.address, found)
    return code


class _Work(msgspec.Struct, frozen=True):
    """What there is to change."""

    set_latest: int | None = None
    rebuild_from: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.set_latest is None and self.rebuild_from is None

    @property
    def question(self) -> str:
        parts = [f"set latest to {self.set_latest}"] if self.set_latest is not None else []
        parts += ["take the pipeline over and rebuild the workdir"] if self.rebuild_from is not None else []
        text = " and ".join(parts)
        return f"{text[:1].upper()}{text[1:]}?"

    def as_json(self) -> list[dict[str, Any]]:
        actions = (("set-latest", self.set_latest), ("rebuild-workdir", self.rebuild_from))
        return [{"action": action, "checkpoint_id": number} for action, number in actions if number is not None]


def _planned(
    report: RecoveryReport,
    chosen: CheckpointManifest | None,
    latest: pointer.Pointer,
    outlook: Outlook | None,
    *,
    rebuild_workdir: bool,
) -> _Work:
    if chosen is None or report.unreadable:
        return _Work()
    number = chosen.checkpoint_id
    set_latest = number if latest.names != number else None
    if not rebuild_workdir or outlook is None or outlook.plan is None:
        return _Work(set_latest)
    if outlook.plan.workdir == "adopt":
        raise Invalid(
            f"The workdir is ahead of checkpoint {number}, the newest trusted one; what it has is nowhere else.",
            code="recover.workdir-ahead",
            about=outlook.workdir,
            unchanged="the store, the workdir and every sink",
            next_step="start the pipeline: it goes on from the workdir",
        )
    return _Work(set_latest, number)


def _show_work(output: Output, work: _Work, latest: pointer.Pointer, outlook: Outlook | None) -> None:
    output.line()
    if work.set_latest is not None:
        why = latest.problem or "it names another"
        output.line(["plan: ", Cell(f"set latest to {work.set_latest}", "strong"), f" ({why})"])
    if work.rebuild_from is not None and outlook is not None:
        what = f"take the pipeline over and rebuild {outlook.workdir} from checkpoint {work.rebuild_from}"
        output.line(["plan: ", Cell(what, "strong"), " (a driver that still runs is stopped)"])


def _carry_out(opened: Opened, output: Output, work: _Work, outlook: Outlook | None) -> bool:
    changed = False
    if work.set_latest is not None:
        changed = opened.store.repair_pointer(work.set_latest)
        number = work.set_latest
        output.line(f"latest now names checkpoint {number}." if changed else "latest named it already.")
    if work.rebuild_from is not None and outlook is not None:
        generation = do_rebuild(opened, outlook, work.rebuild_from)
        output.line(f"{outlook.workdir} is rebuilt, under generation {generation}.")
        changed = True
    return changed


def _exit_code(report: RecoveryReport, outlook: Outlook | None) -> int:
    if report.unreadable:
        return Unavailable.exit_code
    if report.chosen_id is None and report.skipped:
        return Corrupt.exit_code
    return outlook.refusal.exit_code if outlook and outlook.refusal else 0


def _load_chosen(opened: Opened, report: RecoveryReport) -> CheckpointManifest | None:
    if report.chosen_id is None:
        return None
    manifest = opened.store.load_by_id(report.chosen_id)
    if manifest is None:
        raise Conflict(
            f"Checkpoint {report.chosen_id} was removed while it was being looked at.",
            about=opened.address,
            unchanged="the store",
            next_step="run it again; somebody is pruning",
        )
    return manifest


def _as_json(
    report: RecoveryReport,
    chosen: CheckpointManifest | None,
    latest: pointer.Pointer,
    work: _Work,
    outlook: Outlook | None,
    *,
    changed: bool,
    dry_run: bool,
) -> dict[str, Any]:
    resume = None
    if chosen is not None:
        resume = {
            "checkpoint_id": chosen.checkpoint_id,
            "epoch": chosen.epoch,
            "timestamp_ms": chosen.timestamp_ms,
            "source_offsets": {name: source.offsets for name, source in chosen.source_offsets.items()},
            "watermark": chosen.watermark,
            "sink_commit_statuses": msgspec.to_builtins(chosen.sink_commit_statuses),
        }
    return {
        "chosen_id": report.chosen_id,
        "examined": report.examined,
        "elapsed_seconds": report.elapsed,
        "skipped": [
            {"checkpoint_id": number, "reason": why, "unreadable": number in report.unreadable}
            for number, why in report.skipped
        ],
        "resume": resume,
        "latest": latest.as_json(),
        "start": outlook.as_json() if outlook else None,
        "plan": work.as_json(),
        "dry_run": dry_run,
        "applied": changed,
    }
