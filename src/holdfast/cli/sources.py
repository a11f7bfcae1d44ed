"""`holdfast sources`: how far each source of an index has been read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from holdfast.cli import wording
from holdfast.cli.output import Cell, Output, Row
from holdfast.cli.people import GAP, LEAST_LAST, LEAST_WRAPPED
from holdfast.cli.sources_clear import command as clear
from holdfast.cli.sources_index import Observed, SeenSource, observe, on_index, opened, store_of
from holdfast.cli.sources_positions import as_json, cut, words
from holdfast.errors import Corrupt
from holdfast.index import Gap
from holdfast.sinks.index import epoch_of

AT_A_TERMINAL = 200
NEWEST_GAPS = 5
IN_A_PIPE, NAME_IN_A_PIPE = 200, 80
"""Characters that text gets where there is no width to fit into."""
SOURCES = ("SOURCE", "SEQUENCE", "EPOCH", "AGE", "POSITION")
SPARE = (2, 3)
GAPS = ("SOURCE", "AGE", "FROM", "TO", "WHY")


class _Listing(click.Command):
    """`sources URL` lists; `sources clear URL` is a command of its own. No option here takes a value."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        first = next((word for word in args if not word.startswith("-")), None)
        if first is not None and first == clear.name:
            args.remove(first)
            return clear.make_context(f"{info_name} {first}", args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("sources", cls=_Listing)
@on_index
def command(url: str, output: Output) -> int:
    """List the sources of an index: how far each has been read, and what was passed over.

    URL is sqlite:///path, rocksdb:///path, redis://host or postgresql://host/database, or the path of an index on this
    machine. Nothing is changed, and whoever has the index open is not disturbed. EPOCH is what SEQUENCE means in
    an index that a pipeline on Spark writes.

    'holdfast sources clear URL' removes checkpoints; it shows its plan first.

    \b
    Example: holdfast sources sqlite:///data/turnover.db
    """
    with opened(url, read_only=True) as seen:
        observed = observe(seen)
    now_ms = int(time.time() * 1000)
    columns = shutil.get_terminal_size().columns if output.is_terminal else None
    observed.sources.sort(key=lambda source: wording.natural(source.name))
    _draw(output, observed, now_ms, columns)
    output.finish(store_of(observed.address), _found(observed, now_ms))
    return Corrupt.exit_code if observed.is_damaged else 0


def _draw(output: Output, observed: Observed, now_ms: int, columns: int | None) -> None:
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
        rest = wording.count(len(observed.sources) - len(shown), "more source")
        output.note(f"… and {rest} (a pipe and --json get all)")
    if len(observed.gaps) > NEWEST_GAPS:
        output.note(f"… and {wording.count(len(observed.gaps) - NEWEST_GAPS, 'older gap')} (--json has them all)")


def _facts(observed: Observed) -> Iterator[tuple[str, str | Cell]]:
    yield "index", Cell(observed.address, "strong")
    yield "config hash", f"{observed.config_hash:016x}" if observed.config_hash is not None else "none recorded"
    yield "sources", wording.number(len(observed.sources))
    yield "gaps", Cell(wording.number(observed.gap_count), "doubtful" if observed.gap_count else "")


def _source_rows(sources: Sequence[SeenSource], now_ms: int, columns: int | None) -> list[Row]:
    heads = [_head(source, now_ms, columns) for source in sources]
    room = _room_for_positions(heads, columns) if columns else IN_A_PIPE
    return [[*head, _last(source, room)] for source, head in zip(sources, heads, strict=True)]


def _room_for_positions(heads: Sequence[Sequence[str]], columns: int) -> int:
    """What the other columns leave of the terminal's width, less those that the table leaves out for it."""
    rows = [[f"  {SOURCES[0]}", *SOURCES[1:-1]], *heads]
    widths = [max(wording.width(row[n]) for row in rows) + len(GAP) for n in range(len(SOURCES) - 1)]
    for n in SPARE:
        if sum(widths) + LEAST_LAST > columns:
            widths[n] = 0
    return max(columns - sum(widths), LEAST_WRAPPED)


def _head(source: SeenSource, now_ms: int, columns: int | None) -> list[str]:
    name = "  " + cut(source.name, columns // 3 if columns else NAME_IN_A_PIPE)
    if source.stored is None:
        return [name, "-", "-", "-"]
    sequence = source.stored.checkpoint.sequence
    lineage, epoch = epoch_of(sequence)
    of_lineage = f"{epoch} of lineage {lineage}" if lineage else str(epoch)
    return [name, str(sequence), of_lineage, wording.age(source.stored.written_ms, now_ms)]


def _last(source: SeenSource, most: int) -> Cell:
    if source.stored is None:
        return Cell(f"DAMAGED: {source.problem.rpartition('is damaged: ')[2]}", "bad")
    position = source.stored.checkpoint.source_position
    return Cell("none", "faint") if position is None else Cell(words(position, most))


def _gap_rows(gaps: Sequence[Gap], now_ms: int, columns: int | None) -> Iterator[Row]:
    most = columns // 4 - len(GAP) if columns else NAME_IN_A_PIPE
    for gap in gaps:
        yield (
            "  " + cut(gap.source_id, most),
            wording.age(gap.when_ms, now_ms),
            "the start" if gap.from_position is None else words(gap.from_position, most),
            "where it resumed" if gap.to_position is None else words(gap.to_position, most),
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


def _found(observed: Observed, now_ms: int) -> dict[str, Any]:
    config_hash = observed.config_hash
    return {
        "address": observed.address,
        "now_ms": now_ms,
        "config_hash": None if config_hash is None else f"{config_hash:016x}",
        "sources": [_source_json(source) for source in observed.sources],
        "gap_count": observed.gap_count,
        "gaps": [
            {
                "source": gap.source_id,
                "from": as_json(gap.from_position),
                "to": as_json(gap.to_position),
                "when_ms": gap.when_ms,
                "why": gap.why,
            }
            for gap in observed.gaps
        ],
        "problems": observed.problems,
    }


def _source_json(source: SeenSource) -> dict[str, Any]:
    stored = source.stored
    if stored is None:
        return {"source": source.name, "state": "damaged", "reason": source.problem}
    lineage, epoch = epoch_of(stored.checkpoint.sequence)
    return {
        "source": source.name,
        "state": "ok",
        "reason": None,
        "sequence": stored.checkpoint.sequence,
        "epoch": epoch,
        "lineage": lineage,
        "position": as_json(stored.checkpoint.source_position),
        "written_ms": stored.written_ms,
    }
