"""`holdfast show`: everything in one manifest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Literal

import click

from holdfast.checkpoints.manifest import CheckpointManifest, ConnectorCheckpoint
from holdfast.cli.options import LATEST, CheckpointId, on_store
from holdfast.cli.output import Cell, Output, Row
from holdfast.errors import Invalid
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore, load_bytes, load_checkpoint, resolve

Section = tuple[str, tuple[str, ...], list[Row], tuple[int, ...]]
"""Title, header, rows, which columns are numbers."""


@click.command("show")
@on_store
@click.argument("checkpoint", type=CheckpointId(), default=LATEST, metavar="[ID|latest]")
@click.option("--raw", is_flag=True, help="Print the manifest's bytes exactly as they are stored, damaged or not.")
def command(opened: OpenedStore, output: Output, *, checkpoint: int | Literal["latest"], raw: bool) -> int:
    """Show everything one checkpoint says.

    'latest', the default, is the checkpoint with the highest id. Nothing is verified but the manifest's own
    checksum.

    \b
    Example: holdfast show /data/orders 42
    """
    if raw:
        return _print_raw(opened, output, resolve(opened, checkpoint))
    found = load_checkpoint(opened, checkpoint)
    manifest = found.manifest
    for label, text in _identity(manifest, found.size_bytes, opened.catalog.shown(found.key)):
        output.line([Cell(f"{label:<12}", "faint"), text])
    for title, header, rows, right in _sections(manifest):
        if rows:
            output.line()
            output.line(Cell(title, "strong"))
            output.table(["  " + header[0], *header[1:]], [_indented(row) for row in rows], right=right)
    for issue in manifest.validate():
        output.note(issue.message)
    output.finish(opened.address, found.as_json())
    return 0


def _print_raw(opened: OpenedStore, output: Output, checkpoint_id: int) -> int:
    if click.get_current_context().params.get("as_json"):
        raise click.UsageError("--raw and --json contradict each other.", click.get_current_context())
    body = load_bytes(opened, checkpoint_id)
    if output.is_terminal and not body.decode("utf-8", "replace").replace("\n", "").replace("\t", "").isprintable():
        key = opened.catalog.layout.manifest_key(checkpoint_id)
        raise Invalid(
            f"{opened.catalog.shown(key)} holds bytes that a terminal would act on.",
            code="show.control-characters",
            about=opened.catalog.shown(key),
            next_step="send it to a file: " + opened.hint("show", checkpoint_id, "--raw") + " > manifest.json",
        )
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
    return 0


def _identity(manifest: CheckpointManifest, size_bytes: int, where: str) -> Iterator[tuple[str, str | Cell]]:
    now = int(time.time() * 1000)
    own = manifest.own
    yield "checkpoint", Cell(str(manifest.checkpoint_id), "strong")
    yield "epoch", format.number(manifest.epoch)
    yield "created", f"{format.moment(manifest.timestamp_ms)}  ({format.age(manifest.timestamp_ms, now)})"
    yield "size", f"{format.size(size_bytes)}  ({format.number(size_bytes)} bytes)"
    yield "kind", format.kind(manifest) + _chain(manifest)
    yield "written by", _writer(manifest)
    if own.lineage:
        yield "lineage", format.number(own.lineage)
    yield "manifest", where
    if own.sidecar:
        yield "sidecar", f"{own.sidecar.key}  ({format.size(own.sidecar.bytes)})"
    if manifest.state_checksum:
        yield "state sum", manifest.state_checksum
    if manifest.pipeline_hash is not None:
        yield "pipeline", f"hash {manifest.pipeline_hash:016x}"
    if manifest.source_names or manifest.sink_names:
        yield "topology", f"{format.listed(manifest.source_names)} → {format.listed(manifest.sink_names)}"
    yield "watermark", format.watermark(manifest.watermark)
    if manifest.wal_position or manifest.per_core_wal_positions:
        yield "log", f"position {manifest.wal_position}" + _per_core(manifest.per_core_wal_positions)
    if manifest.table_store_checkpoint_path:
        yield "workdir", manifest.table_store_checkpoint_path
    yield "partitions", str(manifest.vnode_count) if manifest.vnode_count else "not recorded"
    for name, value in sorted(own.runtime.items()):
        yield "runtime", f"{name} = {value}"


def _chain(manifest: CheckpointManifest) -> str:
    length = manifest.own.chain_length
    return f"  (needs {format.count(length, 'ancestor')})" if length else ""


def _writer(manifest: CheckpointManifest) -> str:
    if not manifest.is_ours:
        return "another program: no checksum over the manifest itself"
    generation = manifest.own.generation
    return f"Holdfast, write {manifest.own.write_id}" + (f", generation {generation}" if generation else "")


def _per_core(positions: list[int]) -> str:
    return f", per partition {format.listed(positions)}" if positions else ""


def _sections(manifest: CheckpointManifest) -> Iterator[Section]:
    yield "Sources", ("SOURCE", "PARTITION", "OFFSET", "EPOCH"), list(offset_rows(manifest.source_offsets)), (3,)
    yield "Reference tables", ("TABLE", "KEY", "VERSION", "EPOCH"), list(offset_rows(manifest.table_offsets)), (3,)
    yield "Sinks", ("SINK", "EPOCH", "STATUS"), list(_sinks(manifest)), (1,)
    yield "Operators", ("OPERATOR", "SIZE", "WHERE"), list(_operators(manifest)), (1,)
    marks = [(name, format.watermark(mark)) for name, mark in sorted(manifest.source_watermarks.items())]
    yield "Watermarks", ("SOURCE", "WATERMARK"), list(marks), ()
    batches = [(b.key, format.size(b.bytes), format.number(b.entries), b.sha256) for b in manifest.needed_batches]
    yield "Batch objects", ("KEY", "SIZE", "ENTRIES", "SHA-256"), list(batches), (1, 2)
    flying = [(name, format.number(len(records))) for name, records in sorted(manifest.inflight_data.items())]
    yield "In flight", ("EDGE", "RECORDS"), list(flying), (1,)


def offset_rows(connectors: Mapping[str, ConnectorCheckpoint]) -> Iterator[Row]:
    """Connector, partition, offset and epoch, a row each."""
    for name, connector in sorted(connectors.items()):
        kind = connector.metadata.get("connector") or connector.metadata.get("type")
        shown = f"{name} ({kind})" if kind else name
        for partition, offset in sorted(connector.offsets.items(), key=lambda item: format.natural(item[0])):
            yield shown, partition, offset, str(connector.epoch)
        if not connector.offsets:
            yield shown, "-", "-", str(connector.epoch)


def _sinks(manifest: CheckpointManifest) -> Iterator[Row]:
    statuses = manifest.sink_commit_statuses
    for name in sorted({*manifest.sink_epochs, *statuses, *manifest.sink_names}):
        text = format.sink_status(statuses.get(name))
        style: Literal["good", "doubtful", "bad"] = (
            "good" if text == "committed" else "bad" if text.startswith("failed") else "doubtful"
        )
        yield name, str(manifest.sink_epochs.get(name, "-")), Cell(text, style)


def _operators(manifest: CheckpointManifest) -> Iterator[Row]:
    for name in sorted({*manifest.operator_states, *manifest.own.states}):
        version = manifest.own.states.get(name)
        operator = manifest.operator_states.get(name)
        if operator is None:
            held = version.checkpoint_id if version else 0
            yield name, format.size(version.bytes if version else 0), f"unchanged, in checkpoint {held}"
        elif operator.external:
            start = format.number(operator.external_offset)
            yield name, format.size(operator.external_length), f"sidecar, from byte {start}"
        else:
            inline = operator.decode_inline()
            size = "-" if inline is None else format.size(len(inline))
            yield name, size, "manifest" if inline is not None else Cell("manifest, damaged", "bad")


def _indented(row: Row) -> Row:
    first, *rest = row
    cell = first if isinstance(first, Cell) else Cell(first)
    return [Cell("  " + cell.text, cell.style), *rest]
