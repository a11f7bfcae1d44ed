"""`holdfast diff`: what changed from one checkpoint to another."""

from __future__ import annotations

from typing import Literal

import click

from holdfast.cli.options import CheckpointId, on_store
from holdfast.cli.output import Cell, Output, Style
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore
from holdfast.status.compare import ManifestChange, diff_checkpoints

_STYLES: dict[str, Style] = {"added": "good", "removed": "bad", "changed": "doubtful", "unknown": "faint"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "unknown": "?"}


@click.command("diff")
@on_store
@click.argument("a", type=CheckpointId(), metavar="A")
@click.argument("b", type=CheckpointId(), metavar="B")
def command(opened: OpenedStore, output: Output, *, a: int | Literal["latest"], b: int | Literal["latest"]) -> int:
    """Show what changed from checkpoint A to checkpoint B.

    Offsets, sinks, operators, watermarks, topology and size. Operators are compared by the hash of their state
    where both checkpoints record it, otherwise as far as the manifests tell. Exits 0 whether or not they differ.

    \b
    Example: holdfast diff /data/orders 41 latest
    """
    found = diff_checkpoints(opened, a, b)
    old, new = found.old.manifest, found.new.manifest
    sizes = f"{format.size(found.old.size_bytes)} → {format.size(found.new.size_bytes)}"
    output.line(
        [
            Cell(f"checkpoint {old.checkpoint_id} → {new.checkpoint_id}", "strong"),
            f"   epoch {old.epoch} → {new.epoch}   {_apart(new.timestamp_ms - old.timestamp_ms)}   "
            f"{sizes} ({_signed_size(found.size_delta)})",
        ]
    )
    for section in dict.fromkeys(change.section for change in found.changes):
        output.line()
        output.line(Cell(section.capitalize(), "strong"))
        for change in found.changes:
            if change.section == section:
                output.line(["  ", Cell(_sentence(change), _STYLES[change.how])])
    if not found.changes:
        output.line("They say the same about sources, sinks, operators, watermarks and topology.")
    output.finish(opened.address, found.as_json())
    return 0


def _sentence(change: ManifestChange) -> str:
    before, after = change.before, change.after
    moved = f"  ({_signed(change.delta)})" if change.delta is not None else ""
    if change.section == "watermarks":
        before, after, moved = _watermark(before), _watermark(after), _moved(change)
    values = {
        "added": f": {after}" if after else "",
        "removed": f": was {before}" if before else "",
        "changed": f": {before} → {after}{moved}",
        "unknown": f": {after}",
    }[change.how]
    return f"{_SIGNS[change.how]} {change.name}{values}"


def _watermark(text: str | None) -> str | None:
    return None if text is None else format.watermark(int(text))


def _moved(change: ManifestChange) -> str:
    """How far a watermark moved: a length of time if both values are times."""
    if change.delta is None or change.after is None:
        return ""
    is_time = _watermark(change.after) != change.after and _watermark(change.before) != change.before
    sign = "+" if change.delta > 0 else "-"
    return f"  ({sign}{format.span(change.delta)})" if is_time else f"  ({_signed(change.delta)})"


def _signed(delta: int) -> str:
    return ("+" if delta > 0 else "") + format.number(delta)


def _signed_size(delta: int) -> str:
    return "same size" if delta == 0 else ("+" if delta > 0 else "-") + format.size(abs(delta))


def _apart(milliseconds: int) -> str:
    if abs(milliseconds) < 1000:
        return f"{milliseconds} ms apart"
    return f"{format.span(milliseconds)} {'later' if milliseconds > 0 else 'earlier'}"
