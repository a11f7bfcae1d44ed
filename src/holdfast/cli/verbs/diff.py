"""`holdfast diff`: what changed from one checkpoint to another."""

from __future__ import annotations

from typing import Any, Literal

import click
import msgspec

from holdfast.cli.options import CheckpointId, on_store
from holdfast.cli.output import Cell, Output, Style
from holdfast.status import format
from holdfast.status.checkpoints import Opened, load, stored_size
from holdfast.status.compare import Change, compare

_STYLES: dict[str, Style] = {"added": "good", "removed": "bad", "changed": "doubtful", "unknown": "faint"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "unknown": "?"}


@click.command("diff")
@on_store
@click.argument("a", type=CheckpointId(), metavar="A")
@click.argument("b", type=CheckpointId(), metavar="B")
def command(opened: Opened, output: Output, *, a: int | Literal["latest"], b: int | Literal["latest"]) -> int:
    """Show what changed from checkpoint A to checkpoint B.

    Offsets, sinks, operators, watermarks, topology and size. Operators are compared by the hash of their state
    where both checkpoints record it, otherwise as far as the manifests tell. Exits 0 whether or not they differ.

    \b
    Example: holdfast diff /data/orders 41 latest
    """
    (old, old_body), (new, new_body) = load(opened, a), load(opened, b)
    changes = compare(old, new)
    sizes = stored_size(opened, old, len(old_body)), stored_size(opened, new, len(new_body))
    apart_ms = new.timestamp_ms - old.timestamp_ms

    output.line(
        [
            Cell(f"checkpoint {old.checkpoint_id} → {new.checkpoint_id}", "strong"),
            f"   epoch {old.epoch} → {new.epoch}   {_apart(apart_ms)}   "
            f"{format.size(sizes[0])} → {format.size(sizes[1])} ({_signed_size(sizes[1] - sizes[0])})",
        ]
    )
    for section in dict.fromkeys(change.section for change in changes):
        output.line()
        output.line(Cell(section.capitalize(), "strong"))
        for change in changes:
            if change.section == section:
                output.line(["  ", Cell(_sentence(change), _STYLES[change.how])])
    if not changes:
        output.line("They say the same about sources, sinks, operators, watermarks and topology.")
    data: dict[str, Any] = {
        "from": {"checkpoint_id": old.checkpoint_id, "epoch": old.epoch, "timestamp_ms": old.timestamp_ms},
        "to": {"checkpoint_id": new.checkpoint_id, "epoch": new.epoch, "timestamp_ms": new.timestamp_ms},
        "size_bytes": {"from": sizes[0], "to": sizes[1], "delta": sizes[1] - sizes[0]},
        "changes": msgspec.to_builtins(changes),
    }
    output.finish(opened.address, data)
    return 0


def _sentence(change: Change) -> str:
    moved = f"  ({_signed(change.delta)})" if change.delta is not None else ""
    values = {
        "added": f": {change.after}" if change.after else "",
        "removed": f": was {change.before}" if change.before else "",
        "changed": f": {change.before} → {change.after}{moved}",
        "unknown": f": {change.after}",
    }[change.how]
    return f"{_SIGNS[change.how]} {change.name}{values}"


def _signed(delta: int) -> str:
    return ("+" if delta > 0 else "") + format.number(delta)


def _signed_size(delta: int) -> str:
    return "same size" if delta == 0 else ("+" if delta > 0 else "-") + format.size(abs(delta))


def _apart(milliseconds: int) -> str:
    if abs(milliseconds) < 1000:
        return f"{milliseconds} ms apart"
    later = format.age(0, abs(milliseconds)).removesuffix(" ago")
    return f"{later} {'later' if milliseconds > 0 else 'earlier'}"
