"""`holdfast recover`: find the newest valid checkpoint, check `latest`, forecast a start, and repair."""

from __future__ import annotations

import time

import click

from holdfast.checkpoints import RecoveryReport
from holdfast.checkpoints.heartbeat import observe_driver
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.cli.confirm import NOT_AGREED, confirm
from holdfast.cli.options import asks_first, on_store
from holdfast.cli.output import Cell, Output
from holdfast.operations.recover import RecoveryStatus, StartForecast, examine
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore, why_empty


@click.command("recover")
@on_store
@asks_first("Only say what would be resumed from and what would be changed.")
@click.option("--workdir", metavar="PATH", help="Where Spark's workdir is, if not where the checkpoint says.")
@click.option("--rebuild-workdir", is_flag=True, help="Take the pipeline over and rebuild its workdir, here and now.")
def command(
    opened: OpenedStore, output: Output, *, dry_run: bool, yes: bool, workdir: str | None, rebuild_workdir: bool
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
        found = examine(opened, workdir=workdir, progress=bar.advance)
    _show(opened, output, found)
    if found.forecast is None and (workdir or rebuild_workdir):
        output.note("there is no plan for a workdir: " + found.why_no_forecast)
    plan = found.plan(rebuild_workdir=rebuild_workdir)
    if found.report.unreadable:
        unread = format.listed(found.report.unreadable)
        output.note(f"checkpoint {unread} could not be read, which is not damage: try again before resuming elsewhere")
    elif not plan.is_empty or found.chosen is not None:
        output.line()
    if plan.is_empty and found.chosen is not None and not found.report.unreadable:
        output.line("latest names it already: nothing to change.")
    done = confirm(plan, output, dry_run=dry_run, yes=yes)
    applied = bool(done.outcome and done.outcome.result)
    output.finish(opened.address, found.as_json() | {"plan": plan.as_json(), "dry_run": dry_run, "applied": applied})
    return NOT_AGREED if done.exit_code == NOT_AGREED else found.exit_code


def _show(opened: OpenedStore, output: Output, found: RecoveryStatus) -> None:
    _show_walk(output, found.report)
    if found.chosen is None:
        _show_no_choice(opened, output, found.report, is_refused=bool(found.forecast and found.forecast.refusal))
    else:
        _show_chosen(output, found.chosen)
    if found.forecast:
        _show_forecast(output, found.forecast, opened)


def _show_walk(output: Output, report: RecoveryReport) -> None:
    """A line for each checkpoint of the walk back: skipped, unreadable or valid."""
    tried = [number for number, _ in report.skipped] + ([report.chosen_id] if report.chosen_id else [])
    room = max((len(str(number)) for number in tried), default=0)
    for number, why in report.skipped:
        word = "unreadable" if number in report.unreadable else "skipped"
        reason = why.removeprefix("could not be read: ")
        output.line([f"{number:>{room}}  ", Cell(word, "bad"), "  ", reason], wrap=True)
    if report.chosen_id is not None:
        output.line([f"{report.chosen_id:>{room}}  ", Cell("valid", "good"), "  every byte checked"])


def _show_chosen(output: Output, manifest: CheckpointManifest) -> None:
    """The offsets, watermark and unfinished sinks from which a pipeline resumes."""
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
        output.line(f"  watermark {format.watermark(manifest.watermark, int(time.time() * 1000))}")
    for name, status in sorted(manifest.sink_commit_statuses.items()):
        if status != "Committed":
            word = Cell(format.sink_status(status), "doubtful")
            output.line([f"  sink {name} is ", word, "; a pipeline finishes it before it goes on"])


def _show_no_choice(opened: OpenedStore, output: Output, report: RecoveryReport, *, is_refused: bool) -> None:
    """There is no checkpoint to resume from: an empty store, or only damaged checkpoints."""
    if report.skipped:
        what = format.count(report.examined, "checkpoint")
        output.line(Cell(f"none of {what} can be used; this is not a fresh start", "bad"))
        return
    output.note(f"{opened.address} has no checkpoints{'' if is_refused else ': a pipeline starts from the beginning'}.")
    if hint := why_empty(opened):
        output.note(hint)


def _show_forecast(output: Output, forecast: StartForecast, opened: OpenedStore) -> None:
    """What a start would do, or why it would stop."""
    output.line()
    if forecast.refusal:
        output.line(Cell("a start would stop, and change nothing", "bad"))
        output.line(["  ", forecast.refusal.message], wrap=True)
        if forecast.refusal.next_step:
            output.line(["  next: ", forecast.refusal.next_step], wrap=True)
        return
    assert forecast.plan is not None
    output.line(Cell(f"what a start of pipeline {forecast.pipeline} would do", "strong"))
    for sentence in forecast.plan.lines():
        output.line(["  - ", sentence], wrap=True)
    output.line(["  workdir ", forecast.workdir, " as it is on this machine"])
    output.line("  The sinks are asked, and the query is compared, when the pipeline starts.", wrap=True)
    lease, driver = observe_driver(opened.store.objects, time.time())
    if lease and (driver is None or driver.state in ("running", "unknown")):
        who = f"generation {lease.generation} was claimed by {lease.owner}"
        output.line(["  ", f"{who}; while that driver runs, the pipeline needs no recovery"], wrap=True)
    elif driver:
        output.line(["  ", f"the last driver, {driver.owner}, is {driver.state}"], wrap=True)
