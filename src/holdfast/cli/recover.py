"""`holdfast recover`: which checkpoint can be trusted, and does `latest` say so?"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.checkpoints import RecoveryReport
from holdfast.cli import pointer, wording
from holdfast.cli.asking import agreed
from holdfast.cli.options import on_store
from holdfast.cli.output import Cell, Output
from holdfast.cli.reading import Opened, why_empty
from holdfast.errors import Conflict, Corrupt, Unavailable
from holdfast.manifest import CheckpointManifest


@click.command("recover")
@on_store
@click.option("--dry-run", is_flag=True, help="Only say what would be resumed from and what would be changed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(opened: Opened, output: Output, *, dry_run: bool, yes: bool) -> int:
    """Find the newest checkpoint that can be trusted, and repair 'latest'.

    Walks back from the newest checkpoint, reading every byte of each, and stops at the first valid one. The only
    thing that is ever changed is the pointer 'latest', if it names something else; damaged checkpoints stay.
    Exits 6 if every checkpoint is damaged, 8 if one that is newer than the chosen one could not be read.

    \b
    Example: holdfast recover /data/orders --dry-run
    """
    with output.bar("walking back", 0, unit="bytes") as bar:
        report = opened.store.recover_latest_validated(progress=bar.advance)
    latest = pointer.observe(opened.catalog, opened.store.list_ids(), [number for number, _ in report.skipped])
    _show_walk(output, report)
    chosen = _load_chosen(opened, report)
    to_set = None
    if chosen is None:
        _show_no_choice(opened, output, report)
    else:
        _show_chosen(output, chosen)
        if not report.unreadable and latest.names != chosen.checkpoint_id:
            to_set = chosen.checkpoint_id
    changed = False
    code = _exit_code(report)
    if report.unreadable:
        unread = wording.listed(report.unreadable)
        output.note(f"checkpoint {unread} could not be read, which is not damage: try again before resuming elsewhere")
    elif to_set is not None:
        output.line()
        output.line(["plan: ", Cell(f"set latest to {to_set}", "strong"), f" ({latest.problem or 'it names another'})"])
        if agreed(output, f"Set latest to {to_set}?", dry_run=dry_run, yes=yes):
            changed = opened.store.repair_pointer(to_set)
            output.line(f"latest now names checkpoint {to_set}." if changed else "latest named it already.")
        elif not dry_run:
            code = 2
    elif chosen is not None:
        output.line("latest names it already: nothing to change.")
    output.finish(opened.address, _as_json(report, chosen, latest, to_set, changed=changed, dry_run=dry_run))
    return code


def _exit_code(report: RecoveryReport) -> int:
    if report.unreadable:
        return Unavailable.exit_code
    return Corrupt.exit_code if report.chosen_id is None and report.skipped else 0


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


def _show_walk(output: Output, report: RecoveryReport) -> None:
    tried = [number for number, _ in report.skipped] + ([report.chosen_id] if report.chosen_id else [])
    room = max((len(str(number)) for number in tried), default=0)
    for number, why in report.skipped:
        word = "unreadable" if number in report.unreadable else "skipped"
        reason = why.removeprefix("could not be read: ")
        output.line([f"{number:>{room}}  ", Cell(word, "bad"), "  ", reason], wrap=True)
    if report.chosen_id is not None:
        output.line([f"{report.chosen_id:>{room}}  ", Cell("valid", "good"), "  every byte checked"])


def _show_chosen(output: Output, manifest: CheckpointManifest) -> None:
    output.line()
    output.line(Cell(f"resume from checkpoint {manifest.checkpoint_id}, epoch {manifest.epoch}", "strong"))
    rows = [
        (f"  {name}", partition, offset)
        for name, connector in sorted(manifest.source_offsets.items())
        for partition, offset in sorted(connector.offsets.items(), key=lambda item: wording.natural(item[0]))
    ]
    if rows:
        output.table(("  SOURCE", "PARTITION", "OFFSET"), rows)
    if manifest.watermark is not None:
        output.line(f"  watermark {wording.watermark(manifest.watermark)}")
    for name, status in sorted(manifest.sink_commit_statuses.items()):
        if status != "Committed":
            word = Cell(wording.sink_status(status), "doubtful")
            output.line([f"  sink {name} is ", word, "; a pipeline finishes it before it goes on"])


def _show_no_choice(opened: Opened, output: Output, report: RecoveryReport) -> None:
    if report.skipped:
        what = wording.count(report.examined, "checkpoint")
        output.line(Cell(f"none of {what} can be used; this is not a fresh start", "bad"))
        return
    output.note(f"{opened.address} has no checkpoints: a pipeline starts from the beginning.")
    if hint := why_empty(opened):
        output.note(hint)


def _as_json(
    report: RecoveryReport,
    chosen: CheckpointManifest | None,
    latest: pointer.Pointer,
    to_set: int | None,
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
        "plan": [] if to_set is None else [{"action": "set-latest", "checkpoint_id": to_set}],
        "dry_run": dry_run,
        "applied": changed,
    }
