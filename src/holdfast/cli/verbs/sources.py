"""`holdfast sources`: the position of each source of an index; `holdfast sources clear` makes them start over."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence

import click

from holdfast.cli.confirm import confirm
from holdfast.cli.format import cut, width
from holdfast.cli.options import Listing, asks_first, envelope_store, on_index
from holdfast.cli.output import Cell, Output, Row
from holdfast.cli.terminal import GAP, LEAST_LAST, LEAST_WRAPPED
from holdfast.errors import Corrupt
from holdfast.index import Gap
from holdfast.operations.clear_index import plan_clear
from holdfast.status import format
from holdfast.status.index import (
    IndexStatus,
    SourceStatus,
    observe_index,
    opened_index,
    position_offsets,
    position_text,
)

AT_A_TERMINAL = 200
NEWEST_GAPS = 5
IN_A_PIPE, NAME_IN_A_PIPE = 200, 80
"""The most characters of a text, and of a name, if the output is not a terminal."""
SOURCES = ("SOURCE", "SEQUENCE", "EPOCH", "AGE", "POSITION")
SPARE = (2, 3)
GAPS = ("SOURCE", "AGE", "FROM", "TO", "WHY")


@click.command("clear")
@on_index
@click.option("--results", "with_results", is_flag=True, help="Remove the results as well: nothing is left then.")
@asks_first("Only say what would be removed.")
def clear(url: str, output: Output, *, with_results: bool, dry_run: bool, yes: bool) -> int:
    """Remove the checkpoints of an index, its recorded gaps and its configuration hash: its sources then start over.

    Results stay unless --results is given. The plan is shown first. An index on disk that another process has
    open is refused; on a server, a process that has it open cannot write to it any more.

    \b
    Example: holdfast sources clear sqlite:///data/turnover.db --results --dry-run
    """
    plan = plan_clear(url, with_results=with_results)
    done = confirm(plan, output, dry_run=dry_run, yes=yes)
    found = {"address": plan.address, "dry_run": dry_run, "applied": done.outcome is not None, "plan": plan.as_json()}
    output.finish(envelope_store(plan.address), found)
    return done.exit_code


@click.command("sources", cls=Listing, commands={"clear": clear})
@on_index
def command(url: str, output: Output) -> int:
    """List the sources of an index: how far each has been read, and what was passed over.

    URL is sqlite:///path, rocksdb:///path, redis://host, postgresql://host/database, s3://bucket/path, gs://, az:// or
    file:///path (SlateDB), or the path of an index on this machine. Nothing is changed; a process that has the index
    open is not disturbed. EPOCH is what SEQUENCE means in an index that a pipeline on Spark writes.

    'holdfast sources clear URL' removes checkpoints; it shows its plan first.

    \b
    Example: holdfast sources sqlite:///data/turnover.db
    """
    with opened_index(url, read_only=True) as seen:
        observed = observe_index(seen)
    now_ms = int(time.time() * 1000)
    columns = shutil.get_terminal_size().columns if output.is_terminal else None
    _draw(output, observed, now_ms, columns)
    output.finish(envelope_store(observed.address), observed.as_json(now_ms))
    return Corrupt.exit_code if observed.is_damaged else 0


def _draw(output: Output, observed: IndexStatus, now_ms: int, columns: int | None) -> None:
    for problem in observed.problems:
        output.line([Cell("DAMAGED: ", "bad"), cut(problem, IN_A_PIPE)], wrap=True)
    for label, text in _facts(observed):
        output.line([Cell(f"{label:<13}", "faint"), text], wrap=True)
    shown = observed.sources[:AT_A_TERMINAL] if output.is_terminal else observed.sources
    if shown:
        _section(output, "Sources", SOURCES, _source_rows(shown, now_ms, columns), right=(1, 2), spare=SPARE)
    else:
        output.note("no source has a checkpoint here")
    if observed.gaps:
        newest = observed.gaps[: -NEWEST_GAPS - 1 : -1]
        _section(output, "Newest gaps", GAPS, list(_gap_rows(newest, now_ms, columns)), spare=(1,))
    if len(observed.sources) > len(shown):
        rest = format.count(len(observed.sources) - len(shown), "more source")
        output.note(f"… and {rest} (a pipe and --json get all)")
    if len(observed.gaps) > NEWEST_GAPS:
        output.note(f"… and {format.count(len(observed.gaps) - NEWEST_GAPS, 'older gap')} (--json has them all)")


def _facts(observed: IndexStatus) -> Iterator[tuple[str, str | Cell]]:
    yield "index", Cell(observed.address, "strong")
    yield "config hash", f"{observed.config_hash:016x}" if observed.config_hash is not None else "none recorded"
    yield "sources", format.number(len(observed.sources))
    yield "gaps", Cell(format.number(observed.gap_count), "doubtful" if observed.gap_count else "")


def _source_rows(sources: Sequence[SourceStatus], now_ms: int, columns: int | None) -> list[Row]:
    heads = [_head(source, now_ms, columns) for source in sources]
    room = _room_for_positions(heads, columns) if columns else IN_A_PIPE
    return [[*head, _last(source, room)] for source, head in zip(sources, heads, strict=True)]


def _room_for_positions(heads: Sequence[Sequence[str]], columns: int) -> int:
    """The terminal's width minus that of the other columns, not counting those that the table will leave out."""
    rows = [[f"  {SOURCES[0]}", *SOURCES[1:-1]], *heads]
    widths = [max(width(row[n]) for row in rows) + len(GAP) for n in range(len(SOURCES) - 1)]
    for n in SPARE:
        if sum(widths) + LEAST_LAST > columns:
            widths[n] = 0
    return max(columns - sum(widths), LEAST_WRAPPED)


def _head(source: SourceStatus, now_ms: int, columns: int | None) -> list[str]:
    name = "  " + cut(source.name, columns // 3 if columns else NAME_IN_A_PIPE)
    if source.stored is None:
        return [name, "-", "-", "-"]
    sequence = source.stored.checkpoint.sequence
    lineage, epoch = source.lineage_and_epoch
    of_lineage = f"{epoch} of lineage {lineage}" if lineage else str(epoch)
    return [name, str(sequence), of_lineage, format.age(source.stored.written_ms, now_ms)]


def _last(source: SourceStatus, most: int) -> Cell:
    if source.stored is None:
        return Cell(f"DAMAGED: {source.problem.rpartition('is damaged: ')[2]}", "bad")
    position = source.stored.checkpoint.source_position
    return Cell("none", "faint") if position is None else Cell(position_words(position, most))


def _gap_rows(gaps: Sequence[Gap], now_ms: int, columns: int | None) -> Iterator[Row]:
    most = columns // 4 - len(GAP) if columns else NAME_IN_A_PIPE
    for gap in gaps:
        yield (
            "  " + cut(gap.source_id, most),
            format.age(gap.when_ms, now_ms),
            "the start" if gap.from_position is None else position_words(gap.from_position, most),
            "where it resumed" if gap.to_position is None else position_words(gap.to_position, most),
            cut(gap.why, IN_A_PIPE),
        )


def _section(
    output: Output,
    title: str,
    header: tuple[str, ...],
    rows: list[Row],
    *,
    right: Sequence[int] = (),
    spare: Sequence[int] = (),
) -> None:
    output.line()
    output.line(Cell(title, "strong"))
    output.table([f"  {header[0]}", *header[1:]], rows, right=right, spare=spare)


def position_words(position: bytes, most: int) -> str:
    """A position for people: offsets, text, or hex with the number of bytes. The JSON output is exact."""
    if not position:
        return "0 bytes"
    text = position_text(position)
    if text is None:
        return cut(f"{format.count(len(position), 'byte')} {position[:most].hex()}", most)
    offsets = position_offsets(text)
    return cut(text if offsets is None else ", ".join(f"{name}: {value}" for name, value in offsets.items()), most)
