"""`holdfast ls`: which checkpoints there are."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.checkpoints.catalog import in_parallel
from holdfast.cli import pointer, wording
from holdfast.cli.options import on_store
from holdfast.cli.output import Cell, Output, Row
from holdfast.cli.reading import Opened, Seen, look_at, stored_size, why_empty
from holdfast.errors import Unavailable

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
    listing = [_as_json(opened, one, sizes[one.checkpoint_id], latest.names) for one in seen]

    if listing:
        output.table(HEADER, [_row(item, int(time.time() * 1000)) for item in listing], right=(0, 1, 4), spare=(2, 5))
    else:
        output.note(f"{opened.address} has no checkpoints.")
        if hint := why_empty(opened):
            output.note(hint)
    if len(ids) > len(shown):
        output.note(f"… and {wording.number(len(ids) - len(shown))} older (--all shows them)")
    if latest.problem:
        output.note(latest.problem)
    output.finish(opened.address, {"checkpoints": listing, "total": len(ids), "latest": latest.as_json()})
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
        "kind": wording.kind(manifest),
        "is_incremental": manifest.is_incremental,
        "parent_id": manifest.parent_id,
        "sinks": wording.sinks(manifest),
        "sink_commit_statuses": {
            name: wording.status_word(status) for name, status in manifest.sink_commit_statuses.items()
        },
    }


def _row(item: dict[str, Any], now_ms: int) -> Row:
    state = [] if item["state"] == "ok" else [f"{item['state'].upper()}: {item['reason']}"]
    if item["is_latest"]:
        state.insert(0, "latest")
    mark = Cell(", ".join(state), "bad" if item["state"] != "ok" else "good")
    checkpoint_id = Cell(str(item["checkpoint_id"]), "strong")
    if "epoch" not in item:
        return (checkpoint_id, "-", "-", "-", "-", "-", "-", mark)
    statuses = item["sink_commit_statuses"].values()
    settled = "bad" if "failed" in statuses else "doubtful" if "pending" in statuses else ""
    return (
        checkpoint_id,
        str(item["epoch"]),
        wording.moment(item["timestamp_ms"]),
        wording.age(item["timestamp_ms"], now_ms),
        wording.size(item["size_bytes"]),
        item["kind"],
        Cell(item["sinks"], settled),  # type: ignore[arg-type]
        mark,
    )
