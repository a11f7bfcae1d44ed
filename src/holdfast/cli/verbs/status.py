"""`holdfast status`: how a pipeline fares, seen from its store."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from holdfast.base.stopping import StopRequest, stop_on_signals
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.cli.json_output import JsonOutput
from holdfast.cli.options import Duration, on_store
from holdfast.cli.output import Cell, Output, Row, Style
from holdfast.cli.run.screens import Canvas
from holdfast.cli.terminal import TerminalOutput
from holdfast.cli.verbs.show import offset_rows
from holdfast.errors import Unavailable
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore, why_empty
from holdfast.status.pipeline import PipelineStatus, observe_pipeline

EVERY = "2s"


@click.command("status")
@on_store
@click.option(
    "--watch",
    type=Duration(),
    is_flag=False,
    flag_value=EVERY,
    metavar="[SECONDS]",
    help=f"Look again and again, every {EVERY} unless said otherwise, until Ctrl-C.",
)
def command(opened: OpenedStore, output: Output, *, watch: float | None) -> int:
    """Show how a pipeline fares, from its store alone.

    The newest checkpoint, where it stands in its sources, what its sinks have, who runs it, how the last epoch went,
    and what a crash now would mean. Needs neither Spark nor the machine that the pipeline runs on. It is a quick
    look: manifests, and whether what they name is there. 'holdfast verify --deep' reads every byte.

    \b
    Example: holdfast status s3://bucket/orders --watch 5s
    """
    if watch is not None:
        return _watch(opened, output, max(watch, 0.1))
    status = observe_pipeline(opened)
    draw(output, opened, status)
    output.finish(opened.address, status.as_json())
    return status.exit_code


def draw(output: Output, opened: OpenedStore, status: PipelineStatus) -> None:
    """The whole status, for people."""
    newest = status.newest
    for one in status.skipped:
        word = "could not be read" if one.is_unreadable else "is damaged"
        output.line([Cell(f"checkpoint {one.checkpoint_id} {word}: ", "bad"), one.reason], wrap=True)
    if newest is None:
        _draw_nothing(output, opened, status)
        return
    for label, text in _facts(newest, status):
        output.line([Cell(f"{label:<12}", "faint"), text], wrap=True)
    sources = [row[:3] for row in offset_rows(newest.source_offsets)]
    tables = [row[:3] for row in offset_rows(newest.table_offsets)]
    _section(output, "Sources", ("SOURCE", "PARTITION", "OFFSET"), sources)
    _section(output, "Reference tables", ("TABLE", "KEY", "VERSION"), tables)
    _section(output, "Sinks", ("SINK", "EPOCH", "STATUS", "GUARANTEE"), list(_sink_rows(newest, status)), right=(1,))
    output.line()
    output.line(Cell("If it crashed now", "strong"))
    for sentence in _consequences(newest, status):
        output.line(["  ", sentence], wrap=True)
    if status.skipped:
        output.note("to see what can be trusted: " + opened.hint("recover", "--dry-run"))


def _draw_nothing(output: Output, opened: OpenedStore, status: PipelineStatus) -> None:
    if status.skipped:
        output.line(Cell("no checkpoint can be used; this is not a fresh start", "bad"))
        output.note("to see what can be trusted: " + opened.hint("recover", "--dry-run"))
    else:
        output.note(f"{opened.address} has no checkpoints: no pipeline has finished an epoch here.")
        if hint := why_empty(opened):
            output.note(hint)
    if status.lease:
        output.line([Cell(f"{'lease':<12}", "faint"), _lease(status)], wrap=True)


def _facts(newest: CheckpointManifest, status: PipelineStatus) -> Iterator[tuple[str, str | Cell]]:
    unknown = "not recorded: no pipeline of Holdfast's wrote this"
    yield "pipeline", Cell(status.pipeline, "strong") if status.pipeline else unknown
    lineage = f", lineage {newest.own.lineage}" if newest.own.lineage else ""
    yield "epoch", f"{format.number(newest.epoch)}{lineage}"
    yield "checkpoint", f"{newest.checkpoint_id}, {format.size(status.size_bytes)}"
    yield "decided", f"{format.moment(newest.timestamp_ms)}  ({format.age(newest.timestamp_ms, status.now_ms)})"
    yield "lease", _lease(status)
    yield "watermark", format.watermark_now(newest.watermark, status.now_ms)
    if last := status.last_epoch:
        text = f"{format.count(last.rows, 'row')}, {last.rows_per_second:,.1f} rows/s, {last.seconds:,.2f} s"
        yield f"epoch {last.epoch}", text
        if last.lag:
            yield "lag", ", ".join(f"{name} {behind}" for name, behind in sorted(last.lag.items()))


def _lease(status: PipelineStatus) -> str:
    lease = status.lease
    if lease is None:
        return "never claimed"
    when = f" {format.age(lease.claimed_ms, status.now_ms)}" if lease.claimed_ms else ""
    behind = status.newest is not None and status.newest.own.generation < lease.generation
    return f"generation {lease.generation}, claimed by {lease.owner}{when}" + (
        ", which has not finished an epoch yet" if behind else ""
    )


def _sink_rows(newest: CheckpointManifest, status: PipelineStatus) -> Iterator[Row]:
    statuses = newest.sink_commit_statuses
    for name in sorted({*newest.sink_epochs, *statuses, *newest.sink_names}):
        text = format.sink_status(statuses.get(name))
        style: Style = "good" if text == "committed" else "bad" if text.startswith("failed") else "doubtful"
        guarantee = status.guarantees.get(name, "-")
        yield name, str(newest.sink_epochs.get(name, "-")), Cell(text, style), guarantee


def _consequences(newest: CheckpointManifest, status: PipelineStatus) -> Iterator[str]:
    epoch = newest.epoch
    yield f"resume from checkpoint {newest.checkpoint_id}, epoch {format.number(epoch)}"
    if not status.pipeline:
        return
    yield f"Spark runs epoch {epoch} again for its state, unless it had counted it as done; sinks that have it skip it"
    for name in status.owing:
        at_least = status.guarantees.get(name) == "at-least-once"
        twice = ", and may get it twice: it is at-least-once" if at_least else ""
        yield f"sink {name} still owes epoch {epoch} and gets it first{twice}"
    yield f"then epoch {format.number(epoch + 1)}"


def _section(
    output: Output, title: str, header: tuple[str, ...], rows: list[Row], *, right: tuple[int, ...] = ()
) -> None:
    if rows:
        output.line()
        output.line(Cell(title, "strong"))
        output.table(["  " + header[0], *header[1:]], [["  " + str(row[0]), *row[1:]] for row in rows], right=right)


# Again and again


def _watch(opened: OpenedStore, output: Output, every: float) -> int:
    """Repeat until Ctrl-C, which is a normal end. A store that cannot be reached is tried again."""
    code = 0
    asked = StopRequest()

    def end(number: signal.Signals) -> None:
        nonlocal code
        code = 0 if number == signal.SIGINT else 128 + number
        asked.make()

    # A request, not an exception: one in the middle of a picture would leave half of it on the screen.
    with stop_on_signals(end):
        _show_each(opened, output, _statuses(opened, every, asked))
    return code


def _show_each(opened: OpenedStore, output: Output, statuses: Iterator[PipelineStatus | Unavailable]) -> None:
    if isinstance(output, JsonOutput):
        for status in statuses:
            output.add(opened.address, _found(status))
    elif output.is_terminal and os.environ.get("TERM") != "dumb":
        canvas = Canvas(sys.stdout, environment=os.environ)
        with canvas.shown():
            for status in statuses:
                canvas.draw(partial(_draw_now, opened=opened, status=status))
    else:
        for status in statuses:
            output.line(status_line(status))
            sys.stdout.flush()


def _statuses(opened: OpenedStore, every: float, asked: StopRequest) -> Iterator[PipelineStatus | Unavailable]:
    while not asked.is_made():
        try:
            yield observe_pipeline(opened)
        except Unavailable as error:
            yield error
        asked.wait(every)


def _draw_now(output: TerminalOutput, *, opened: OpenedStore, status: PipelineStatus | Unavailable) -> None:
    if isinstance(status, Unavailable):
        output.fail(status)
        return
    output.line(Cell(f"{opened.address}  {format.moment(status.now_ms)}", "faint"))
    draw(output, opened, status)


def status_line(status: PipelineStatus | Unavailable) -> str:
    """The status in one line of a log."""
    if isinstance(status, Unavailable):
        return f"unavailable: {status.message}"
    newest = status.newest
    parts = [format.moment(status.now_ms), status.pipeline or "-"]
    if newest is None:
        parts.append("every checkpoint is damaged" if status.skipped else "no checkpoint yet")
        return "  ".join(parts)
    last = status.last_epoch
    parts += [
        f"epoch {newest.epoch}",
        f"checkpoint {newest.checkpoint_id}, {format.size(status.size_bytes)}",
        format.age(newest.timestamp_ms, status.now_ms),
        f"watermark {format.moment(newest.watermark)}" if newest.watermark is not None else "",
        f"sinks {format.sinks(newest)}" if newest.sink_commit_statuses else "",
        f"epoch {last.epoch}: {format.count(last.rows, 'row')}, {last.rows_per_second:,.1f}/s" if last else "",
        f"{format.count(len(status.skipped), 'newer checkpoint')} cannot be used" if status.skipped else "",
    ]
    return "  ".join(part for part in parts if part)


def _found(status: PipelineStatus | Unavailable) -> dict[str, Any]:
    if isinstance(status, Unavailable):
        return {"error": {"code": status.code, "message": status.message}}
    return status.as_json()
