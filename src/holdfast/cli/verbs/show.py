"""`holdfast show`: everything in one manifest."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Literal

import click

from holdfast.base.shortened import shortened
from holdfast.checkpoints.manifest import CheckpointManifest, ConnectorCheckpoint
from holdfast.cli.options import LATEST, CheckpointId, on_store
from holdfast.cli.output import Cell, Output, Row, Style
from holdfast.errors import Invalid
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore, load_bytes, load_checkpoint, resolve
from holdfast.status.pipeline import guarantees, last_epoch, pipeline_name

Section = tuple[str, tuple[str, ...], list[Row], tuple[int, ...]]
"""Title, header, rows, the columns that are numbers."""


@click.command("show")
@on_store
@click.argument("checkpoint", type=CheckpointId(), default=LATEST, metavar="[ID|latest]")
@click.option("--raw", is_flag=True, help="Print the manifest's bytes exactly as they are stored, damaged or not.")
def command(opened: OpenedStore, output: Output, *, checkpoint: int | Literal["latest"], raw: bool) -> int:
    """Show everything one checkpoint says.

    How far the pipeline had come, what each sink has, and where the state lies. 'latest', the default, is the
    checkpoint with the highest id. Nothing is verified but the manifest's own checksum. --json has every value in
    full: watermarks in milliseconds, hashes, fields of other programs.

    \b
    Example: holdfast show /data/orders 42
    """
    if raw:
        return _print_raw(opened, output, resolve(opened, checkpoint))
    found = load_checkpoint(opened, checkpoint)
    manifest = found.manifest
    now_ms = int(time.time() * 1000)
    _facts(output, _summary(manifest, found.size_bytes, now_ms))
    for title, header, rows, right in _sections(manifest, now_ms):
        if rows:
            _title(output, title)
            output.table(["  " + header[0], *header[1:]], [_indented(row) for row in rows], right=right)
    _title(output, "Details")
    _facts(output, _details(manifest, opened.catalog.shown(found.key)), indent="  ", room=18)
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
            f"{opened.catalog.shown(key)} has control characters in it, which a terminal would obey.",
            code="show.control-characters",
            about=opened.catalog.shown(key),
            next_step="send it to a file: " + opened.hint("show", checkpoint_id, "--raw") + " > manifest.json",
        )
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
    return 0


def _facts(output: Output, facts: Iterator[tuple[str, str | Cell]], *, indent: str = "", room: int = 12) -> None:
    for label, text in facts:
        output.line([Cell(f"{indent}{label:<{room}}", "faint"), text])  # not wrapped: paths are copied from here


def _title(output: Output, title: str) -> None:
    output.line()
    output.line(Cell(title, "strong"))


def _summary(manifest: CheckpointManifest, size_bytes: int, now_ms: int) -> Iterator[tuple[str, str | Cell]]:
    """How far the pipeline had come with this checkpoint."""
    pipeline = pipeline_name(manifest)
    yield "checkpoint", Cell(f"{manifest.checkpoint_id}{f' of pipeline {pipeline}' if pipeline else ''}", "strong")
    lineage = f", lineage {format.number(manifest.own.lineage)}" if manifest.own.lineage else ""
    yield "epoch", f"{format.number(manifest.epoch)}{lineage}"
    yield "created", f"{format.moment(manifest.timestamp_ms)}  ({format.age(manifest.timestamp_ms, now_ms)})"
    yield "watermark", format.watermark(manifest.watermark, now_ms)
    if manifest.source_names or manifest.sink_names:
        yield "topology", f"{format.listed(manifest.source_names)} → {format.listed(manifest.sink_names)}"
    yield "size", f"{format.size(size_bytes)}, {format.kind(manifest)}{_chain(manifest)}"
    if last := last_epoch(manifest):
        yield f"epoch {last.epoch}", format.throughput(last.rows, last.rows_per_second, last.seconds)
        if last.lag:
            yield "lag", ", ".join(f"{name} {behind}" for name, behind in sorted(last.lag.items()))


def _chain(manifest: CheckpointManifest) -> str:
    length = manifest.own.chain_length
    return f"  (needs {format.count(length, 'ancestor')})" if length else ""


def _details(manifest: CheckpointManifest, where: str) -> Iterator[tuple[str, str]]:
    """Details, shown last: paths, the writer, hashes, and everything else that the runtime recorded."""
    own = manifest.own
    yield "manifest", where
    if own.sidecar:
        yield "sidecar", f"{own.sidecar.key}  ({format.size(own.sidecar.bytes)})"
    yield "written by", _writer(manifest)
    if manifest.pipeline_hash is not None:
        yield "pipeline hash", f"{manifest.pipeline_hash:016x}"
    if manifest.state_checksum:
        yield "state SHA-256", manifest.state_checksum
    yield "state partitions", str(manifest.vnode_count) if manifest.vnode_count else "not recorded"
    if manifest.table_store_checkpoint_path:
        yield "workdir", manifest.table_store_checkpoint_path
    spark = own.runtime.get("spark")
    if manifest.wal_position or manifest.per_core_wal_positions or spark:
        label, position = ("Spark", f"{spark}, batch") if isinstance(spark, str) else ("log", "position")
        yield label, f"{position} {manifest.wal_position}" + _per_core(manifest.per_core_wal_positions)
    for name, value in sorted(own.runtime.items()):
        if name not in _SHOWN_ELSEWHERE:
            yield name.replace("_", " "), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_SHOWN_ELSEWHERE = {"pipeline", "guarantees", "last_epoch", "spark", "sources", "description"}
"""Records of the runtime that `_details` leaves out. The description has many lines: only --raw shows it."""


def _writer(manifest: CheckpointManifest) -> str:
    if not manifest.is_ours:
        return "another program: no checksum over the manifest itself"
    generation = f"generation {manifest.own.generation}, " if manifest.own.generation else ""
    return f"Holdfast, {generation}write {manifest.own.write_id}"


def _per_core(positions: list[int]) -> str:
    return f", per partition {format.listed(positions)}" if positions else ""


def _sections(manifest: CheckpointManifest, now_ms: int) -> Iterator[Section]:
    yield _offsets("Sources", ("SOURCE", "PARTITION", "OFFSET"), manifest.source_offsets, manifest.epoch)
    yield _offsets("Reference tables", ("TABLE", "KEY", "VERSION"), manifest.table_offsets, manifest.epoch)
    yield _sinks(manifest)
    yield "Operators", ("OPERATOR", "SIZE", "WHERE"), list(_operators(manifest)), (1,)
    is_of_all = set(manifest.source_watermarks) == set(manifest.source_names)
    differing = not is_of_all or set(manifest.source_watermarks.values()) != {manifest.watermark}
    marks = sorted(manifest.source_watermarks.items()) if differing else []
    yield "Watermarks", ("SOURCE", "WATERMARK"), [(name, format.watermark(mark, now_ms)) for name, mark in marks], ()
    batches = [
        (b.key, format.size(b.bytes), format.number(b.entries), shortened(b.sha256, 13))
        for b in manifest.needed_batches
    ]
    yield "Batch objects", ("KEY", "SIZE", "ENTRIES", "SHA-256"), list(batches), (1, 2)
    flying = [(name, format.number(len(records))) for name, records in sorted(manifest.inflight_data.items())]
    yield "In flight", ("EDGE", "RECORDS"), list(flying), (1,)


def _offsets(title: str, header: tuple[str, ...], connectors: Mapping[str, ConnectorCheckpoint], epoch: int) -> Section:
    """Offsets by partition; with a column for the epoch only if one is of another epoch than the checkpoint."""
    rows = list(offset_rows(connectors))
    if all(connector.epoch == epoch for connector in connectors.values()):
        return title, header, [row[:3] for row in rows], ()
    return title, (*header, "EPOCH"), rows, (3,)


def offset_rows(connectors: Mapping[str, ConnectorCheckpoint]) -> Iterator[Row]:
    """A row for each partition: connector, partition, offset and epoch."""
    for name, connector in sorted(connectors.items()):
        kind = connector.metadata.get("connector") or connector.metadata.get("type")
        shown = f"{name} ({kind})" if kind else name
        for partition, offset in sorted(connector.offsets.items(), key=lambda item: format.natural(item[0])):
            yield shown, partition, offset, str(connector.epoch)
        if not connector.offsets:
            yield shown, "-", "-", str(connector.epoch)


def _sinks(manifest: CheckpointManifest) -> Section:
    """The sinks; with a column for their guarantees if the checkpoint records them."""
    statuses, guaranteed = manifest.sink_commit_statuses, guarantees(manifest)
    rows: list[Row] = []
    for name in sorted({*manifest.sink_epochs, *statuses, *manifest.sink_names}):
        text = format.sink_status(statuses.get(name))
        style: Style = "good" if text == "committed" else "bad" if text.startswith("failed") else "doubtful"
        row = (name, str(manifest.sink_epochs.get(name, "-")), Cell(text, style), guaranteed.get(name, "-"))
        rows.append(row if guaranteed else row[:3])
    header = ("SINK", "EPOCH", "STATUS", "GUARANTEE")
    return "Sinks", header if guaranteed else header[:3], rows, (1,)


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
