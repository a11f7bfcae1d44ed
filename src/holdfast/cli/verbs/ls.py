"""`holdfast ls`: list the checkpoints of a store."""

from __future__ import annotations

import time

import click

from holdfast.cli.options import on_store
from holdfast.cli.output import Cell, Output, Row
from holdfast.status import format
from holdfast.status.checkpoints import ListedCheckpoint, OpenedStore, list_checkpoints, why_empty

AT_A_TERMINAL = 20
HEADER = ("ID", "EPOCH", "CREATED", "AGE", "SIZE", "KIND", "SINKS", "STATE")


@click.command("ls")
@on_store
@click.option("--limit", type=click.IntRange(min=1), help="Show at most this many, the newest.")
@click.option("--all", "every", is_flag=True, help=f"Show all; a terminal gets the newest {AT_A_TERMINAL} otherwise.")
def command(opened: OpenedStore, output: Output, *, limit: int | None, every: bool) -> int:
    """List checkpoints, newest first.

    STATE says which one 'latest' names and which manifests are damaged. Only the manifests that are shown are
    read; whether the state behind them is intact is for 'holdfast verify'.

    \b
    Example: holdfast ls s3://bucket/orders --limit 5
    """
    if every and limit:
        raise click.UsageError("--all and --limit contradict each other.", click.get_current_context())
    most = limit or (AT_A_TERMINAL if output.is_terminal and not every else None)
    found = list_checkpoints(opened, most)
    if found.checkpoints:
        now_ms = int(time.time() * 1000)
        output.table(HEADER, [_row(one, now_ms) for one in found.checkpoints], right=(0, 1, 4), spare=(2, 5))
    else:
        output.note(f"{opened.address} has no checkpoints.")
        if hint := why_empty(opened):
            output.note(hint)
    if most is not None and found.total > most:
        output.note(f"… and {format.number(found.total - most)} older (--all shows them)")
    if found.latest.problem:
        output.note(found.latest.problem)
    output.finish(opened.address, found.as_json())
    return found.exit_code


def _row(one: ListedCheckpoint, now_ms: int) -> Row:
    seen = one.seen
    words = ["latest"] if one.is_latest else []
    if seen.state != "ok":
        words.append(f"{seen.state.upper()}: {seen.reason}")
    checkpoint_id = Cell(str(seen.checkpoint_id), "strong")
    state = Cell(", ".join(words), "good" if seen.state == "ok" else "bad")
    manifest = seen.manifest
    if manifest is None:
        return (checkpoint_id, "-", "-", "-", "-", "-", "-", state)
    return (
        checkpoint_id,
        str(manifest.epoch),
        format.moment(manifest.timestamp_ms),
        format.age(manifest.timestamp_ms, now_ms),
        format.size(one.size_bytes),
        format.kind(manifest),
        Cell(format.sinks(manifest), "" if manifest.is_settled else "doubtful"),
        state,
    )
