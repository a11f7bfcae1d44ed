"""`holdfast status`: the status of a pipeline, read from its store."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from holdfast.base.stop_request import StopRequest, stop_on_signals
from holdfast.checkpoints.heartbeat import DriverStatus
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.cli.json_output import JsonOutput
from holdfast.cli.options import LengthOfTime, on_store
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
    type=LengthOfTime(),
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
    has_ended = status.driver is not None and status.driver.state in ("stopped", "failed", "dead")
    output.line(Cell("At the next start" if has_ended else "If it crashed now", "strong"))
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
        for label, text in (*_driver_facts(status), ("lease", _lease(status))):
            output.line([Cell(f"{label:<12}", "faint"), text], wrap=True)


def _facts(newest: CheckpointManifest, status: PipelineStatus) -> Iterator[tuple[str, str | Cell]]:
    unknown = "not recorded: no pipeline of Holdfast's wrote this"
    yield "pipeline", Cell(status.pipeline, "strong") if status.pipeline else unknown
    yield from _driver_facts(status)
    lineage = f", lineage {newest.own.lineage}" if newest.own.lineage else ""
    yield "epoch", f"{format.number(newest.epoch)}{lineage}"
    yield "checkpoint", f"{newest.checkpoint_id}, {format.size(status.size_bytes)}"
    yield "decided", f"{format.moment(newest.timestamp_ms)}  ({format.age(newest.timestamp_ms, status.now_ms)})"
    yield "lease", _lease(status)
    yield "watermark", format.watermark(newest.watermark, status.now_ms)
    if last := status.last_epoch:
        yield f"epoch {last.epoch}", format.throughput(last.rows, last.rows_per_second, last.seconds)
        if last.lag:
            yield "lag", ", ".join(f"{name} {behind}" for name, behind in sorted(last.lag.items()))


_DRIVER_STYLES: dict[str, Style] = {"running": "good", "failed": "bad", "dead": "bad", "fenced": "doubtful"}


def _driver_facts(status: PipelineStatus) -> Iterator[tuple[str, str | Cell]]:
    if status.driver:
        yield "driver", Cell(_driver(status.driver, status.now_ms), _DRIVER_STYLES.get(status.driver.state, ""))


def _driver(driver: DriverStatus, now_ms: int) -> str:
    """The state of the driver in a sentence."""
    who = driver.owner
    seen = format.age(min(driver.seen_ms, now_ms), now_ms) if driver.seen_ms else ""
    began = f" since {format.moment(driver.started_ms)}" if driver.started_ms else ""
    match driver.state:
        case "running":
            return f"running on {who}{began}, last seen {seen}"
        case "stopped":
            return f"stopped {seen}, on {who}"
        case "failed":
            return f"failed {seen}, on {who}" + (f": {driver.reason}" if driver.reason else "")
        case "dead":
            return f"dead: {who} ran{began} and was last seen {seen}"
        case "fenced":
            by = driver.taken_over_by
            return f"fenced: {who}, last seen {seen}, was taken over by {by.owner if by else 'another driver'}"
        case "unknown":
            return f"unknown: {who} has given no sign of life"


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
    for name in status.owing:
        at_least = status.guarantees.get(name) == "at-least-once"
        twice = ", and may get it twice: it is at-least-once" if at_least else ""
        yield f"sink {name} still owes epoch {epoch} and gets it first{twice}"
    yield f"Spark runs epoch {epoch} again for its state, unless it had counted it as done; sinks that have it skip it"
    yield f"then epoch {format.number(epoch + 1)}"


def _section(
    output: Output, title: str, header: tuple[str, ...], rows: list[Row], *, right: tuple[int, ...] = ()
) -> None:
    if rows:
        output.line()
        output.line(Cell(title, "strong"))
        output.table(["  " + header[0], *header[1:]], [["  " + str(row[0]), *row[1:]] for row in rows], right=right)


# --watch


def _watch(opened: OpenedStore, output: Output, every: float) -> int:
    """Show the status again and again until Ctrl-C, which is a normal end. Retries a store that is unavailable."""
    code = 0
    asked = StopRequest()

    def end(number: signal.Signals) -> None:
        nonlocal code
        code = 0 if number == signal.SIGINT else 128 + number
        asked.make()

    # A stop request, not an exception: an exception while drawing would leave half a picture on the screen.
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
    """The status as a log line."""
    if isinstance(status, Unavailable):
        return f"unavailable: {status.message}"
    newest = status.newest
    driver = status.driver.state if status.driver and status.driver.state != "unknown" else ""
    parts = [format.moment(status.now_ms), status.pipeline or "-", driver]
    if newest is None:
        parts.append("every checkpoint is damaged" if status.skipped else "no checkpoint yet")
        return "  ".join(part for part in parts if part)
    last = status.last_epoch
    parts += [
        f"epoch {newest.epoch}",
        f"checkpoint {newest.checkpoint_id}, {format.size(status.size_bytes)}",
        format.age(newest.timestamp_ms, status.now_ms),
        f"watermark {format.watermark(newest.watermark)}" if newest.watermark is not None else "",
        f"sinks {format.sinks(newest)}" if newest.sink_commit_statuses else "",
        f"epoch {last.epoch}: {format.count(last.rows, 'row')}, {last.rows_per_second:,.1f}/s" if last else "",
        f"{format.count(len(status.skipped), 'newer checkpoint')} cannot be used" if status.skipped else "",
    ]
    return "  ".join(part for part in parts if part)


def _found(status: PipelineStatus | Unavailable) -> dict[str, Any]:
    if isinstance(status, Unavailable):
        return {"error": {"code": status.code, "message": status.message}}
    return status.as_json()
