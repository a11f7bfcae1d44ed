"""What `holdfast recover` has found, in words."""

from __future__ import annotations

from holdfast.checkpoints import RecoveryReport
from holdfast.checkpoints.lease import current
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.cli.output import Cell, Output
from holdfast.operations.recover import Outlook
from holdfast.status import format
from holdfast.status.checkpoints import Opened, why_empty


def show_walk(output: Output, report: RecoveryReport) -> None:
    """Every checkpoint that was tried, and what was found."""
    tried = [number for number, _ in report.skipped] + ([report.chosen_id] if report.chosen_id else [])
    room = max((len(str(number)) for number in tried), default=0)
    for number, why in report.skipped:
        word = "unreadable" if number in report.unreadable else "skipped"
        reason = why.removeprefix("could not be read: ")
        output.line([f"{number:>{room}}  ", Cell(word, "bad"), "  ", reason], wrap=True)
    if report.chosen_id is not None:
        output.line([f"{report.chosen_id:>{room}}  ", Cell("valid", "good"), "  every byte checked"])


def show_chosen(output: Output, manifest: CheckpointManifest) -> None:
    """Where a pipeline resumes."""
    output.line()
    output.line(Cell(f"resume from checkpoint {manifest.checkpoint_id}, epoch {manifest.epoch}", "strong"))
    rows = [
        (f"  {name}", partition, offset)
        for name, connector in sorted(manifest.source_offsets.items())
        for partition, offset in sorted(connector.offsets.items(), key=lambda item: format.natural(item[0]))
    ]
    if rows:
        output.table(("  SOURCE", "PARTITION", "OFFSET"), rows)
    if manifest.watermark is not None:
        output.line(f"  watermark {format.watermark(manifest.watermark)}")
    for name, status in sorted(manifest.sink_commit_statuses.items()):
        if status != "Committed":
            word = Cell(format.sink_status(status), "doubtful")
            output.line([f"  sink {name} is ", word, "; a pipeline finishes it before it goes on"])


def show_no_choice(opened: Opened, output: Output, report: RecoveryReport, *, is_refused: bool) -> None:
    """Nothing to resume from, and what that means."""
    if report.skipped:
        what = format.count(report.examined, "checkpoint")
        output.line(Cell(f"none of {what} can be used; this is not a fresh start", "bad"))
        return
    output.note(f"{opened.address} has no checkpoints{'' if is_refused else ': a pipeline starts from the beginning'}.")
    if hint := why_empty(opened):
        output.note(hint)


def show_outlook(output: Output, outlook: Outlook, opened: Opened) -> None:
    """What a start would do, or why it would stop."""
    output.line()
    if outlook.refusal:
        output.line(Cell("a start would stop, and change nothing", "bad"))
        output.line(["  ", outlook.refusal.message], wrap=True)
        if outlook.refusal.next_step:
            output.line(["  next: ", outlook.refusal.next_step], wrap=True)
        return
    assert outlook.plan is not None
    output.line(Cell(f"what a start of pipeline {outlook.pipeline} would do", "strong"))
    for sentence in outlook.plan.words():
        output.line(["  - ", sentence], wrap=True)
    output.line(["  workdir ", outlook.workdir, " as it is on this machine"])
    output.line("  The sinks are asked, and the query is compared, when the pipeline starts.", wrap=True)
    if lease := current(opened.store.objects):
        who = f"generation {lease.generation} was claimed by {lease.owner}"
        output.line(["  ", f"{who}; while that driver runs, the pipeline needs no recovery"], wrap=True)


def why_no_outlook(report: RecoveryReport, chosen: CheckpointManifest | None) -> str:
    """Why there is nothing to say about a workdir."""
    if report.unreadable:
        return "the newest checkpoint could not be read"
    if chosen is None:
        return "there is no checkpoint to rebuild one from"
    if chosen.own.runtime.get("pipeline"):
        return "the checkpoint does not say where it was; pass --workdir"
    return "no pipeline of Holdfast's wrote these checkpoints"
