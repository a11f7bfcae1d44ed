"""`holdfast ls`: which checkpoints there are."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from holdfast.checkpoints.catalog import in_parallel
from holdfast.cli import pointer
from holdfast.cli.options import on_store
from holdfast.cli.output import Cell, Output, Row
from holdfast.errors import Unavailable
from holdfast.status import format
from holdfast.status.checkpoints import Opened, Seen, look_at, stored_size, why_empty

AT_A_TERMINAL = 20
HEADER = ("ID", "EPOCH", "CREATED", "AGE", "SIZE", "KIND", "SINKS", "STATE")


@click.command("ls")
@on_store
@click.option("--limit", type=click.IntRange(min=1), help="Show at most so many, the newest.")
@click.option("--all", "every", is_flag=True, help=f"Show all; a terminal gets the newest {AT_A_TERMINAL} otherwise.")
def command(opened: Opened, output: Output, *, limit: int | None, every: bool) -> int:
    """List checkpoints, newest first.

    STATE says which one 'latest' names and which manifests are damaged. Only the manifests that are shown are
    read; whether the state behind them is intact is for 'holdfast verify'.

    \b
    Example: holdfast ls s3://bucket/orders --limit 5
    """
    if every and limit:
        raise click.UsageError("--all and --limit contradict each other.", click.get_current_context())
    folder = opened.catalog.layout.folders[0]
    sizes = {
        checkpoint_id: info.size
        for info in opened.store.objects.list(folder)
        if (checkpoint_id := opened.catalog.layout.manifest_id(info.key)) is not None
    }
    ids = sorted(sizes)
    most = limit or (AT_A_TERMINAL if output.is_terminal and not every else len(ids))
    shown = ids[::-1][:most]
    seen = [one for one in in_parallel(lambda number: look_at(opened, number), shown) if one.state != "gone"]
    latest = pointer.observe(opened.catalog, ids, [one.checkpoint_id for one in seen if one.state == "damaged"])
    checkpoints = [_as_json(opened, one, sizes[one.checkpoint_id], latest.names) for one in seen]

    if seen:
        now_ms = int(time.time() * 1000)
        rows = [_row(one, item, now_ms) for one, item in zip(seen, checkpoints, strict=True)]
        output.table(HEADER, rows, right=(0, 1, 4), spare=(2, 5))
    else:
        output.note(f"{opened.address} has no checkpoints.")
        if hint := why_empty(opened):
            output.note(hint)
    if len(ids) > len(shown):
        output.note(f"… and {format.number(len(ids) - len(shown))} older (--all shows them)")
    if latest.problem:
        output.note(latest.problem)
    output.finish(opened.address, {"checkpoints": checkpoints, "total": len(ids), "latest": latest.as_json()})
    return Unavailable.exit_code if any(one.state == "unreadable" for one in seen) else 0


def _as_json(opened: Opened, seen: Seen, manifest_bytes: int, latest: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "checkpoint_id": seen.checkpoint_id,
        "state": seen.state,
        "reason": seen.reason or None,
        "is_latest": seen.checkpoint_id == latest,
    }
    manifest = seen.manifest
    if manifest is None:
        return found
    return found | {
        "epoch": manifest.epoch,
        "timestamp_ms": manifest.timestamp_ms,
        "size_bytes": stored_size(opened, manifest, manifest_bytes),
        "is_incremental": manifest.is_incremental,
        "parent_id": manifest.parent_id,
        "sink_commit_statuses": msgspec.to_builtins(manifest.sink_commit_statuses),
    }


def _row(seen: Seen, item: dict[str, Any], now_ms: int) -> Row:
    words = ["latest"] if item["is_latest"] else []
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
        format.size(item["size_bytes"]),
        format.kind(manifest),
        Cell(format.sinks(manifest), "" if manifest.is_settled else "doubtful"),
        state,
    )
