"""`holdfast projections`: every projection of a store, and how far it has come."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from holdfast.cli.output import Cell, Output, Row
from holdfast.cli.projections_letters import command as dead_letters
from holdfast.cli.projections_rebuild import command as rebuild
from holdfast.cli.projections_reset import command as reset
from holdfast.cli.projections_store import on_projections, store_of
from holdfast.cli.projections_words import known, lease_json, rebuild_json, worker
from holdfast.cli.sources_positions import cut
from holdfast.errors import Corrupt
from holdfast.projections import open_projections
from holdfast.status import format
from holdfast.status.projections import Observed, SeenProjection, observe

VERBS = {"reset": reset, "rebuild": rebuild, "dead-letters": dead_letters}
AT_A_TERMINAL = 200
PROBLEM, NAME_IN_A_PIPE = 400, 80
PROJECTIONS = ("PROJECTION", "VERSION", "POSITION", "LAG", "STREAMS", "LETTERS", "AGE", "WORKER")
SPARE = (6, 4, 1)
REBUILDS = ("PROJECTION", "VERSION", "POSITION", "LAST MOVED")


class _Listing(click.Command):
    """`projections URL` lists; the others are commands of their own. No option here takes a value."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        first = next((word for word in args if not word.startswith("-")), None)
        if first is not None and first in VERBS:
            args.remove(first)
            return VERBS[first].make_context(f"{info_name} {first}", args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("projections", cls=_Listing)
@on_projections
def command(url: str, output: Output) -> int:
    """List the projections of a store: version, position, lag, cursors, dead letters, and who works on each.

    URL is sqlite:///path, s3://bucket/path, gs://, az:// or file:///path, or the path of a store on this machine.
    Nothing is changed, and whoever has the store open is neither fenced nor disturbed. LAG counts the events of all
    streams.

    \b
    'holdfast projections reset URL NAME' empties one,
    'holdfast projections rebuild URL NAME --projection FILE.py:CLASS' makes one anew beside the live one,
    'holdfast projections dead-letters URL NAME' lists the events that could not be handled.

    \b
    Example: holdfast projections sqlite:///data/shop.db
    """
    with open_projections(url, read_only=True) as store:
        observed = observe(store)
    now_ms = int(time.time() * 1000)
    observed.projections.sort(key=lambda projection: format.natural(projection.name))
    columns = shutil.get_terminal_size().columns if output.is_terminal else None
    _draw(output, observed, now_ms, columns // 3 if columns else NAME_IN_A_PIPE)
    output.finish(store_of(observed.address), _found(observed, now_ms))
    return Corrupt.exit_code if observed.is_damaged else 0


def _draw(output: Output, observed: Observed, now_ms: int, most: int) -> None:
    for problem in (*observed.problems, *(found for seen in observed.projections for found in seen.problems)):
        output.line([Cell("DAMAGED: ", "bad"), cut(problem, PROBLEM)], wrap=True)
    for label, text in _facts(observed):
        output.line([Cell(f"{label:<13}", "faint"), text], wrap=True)
    shown = observed.projections[:AT_A_TERMINAL] if output.is_terminal else observed.projections
    if not shown:
        output.note("no projection has been run here")
        return
    output.line()
    rows = [_row(seen, observed.head, now_ms, most) for seen in shown]
    output.table(PROJECTIONS, rows, right=(1, 2, 3, 4, 5), spare=SPARE)
    rebuilds = list(_rebuild_rows(shown, observed.head, now_ms, most))
    if rebuilds:
        output.line()
        output.line(Cell("Rebuilds that are not finished", "strong"))
        output.table(REBUILDS, rebuilds, right=(1,))
    if len(observed.projections) > len(shown):
        rest = format.count(len(observed.projections) - len(shown), "more projection")
        output.note(f"… and {rest} (a pipe and --json get all)")


def _facts(observed: Observed) -> Iterator[tuple[str, str | Cell]]:
    yield "store", Cell(observed.address, "strong")
    yield "events", known(observed.head)
    yield "projections", format.number(len(observed.projections))


def _row(seen: SeenProjection, head: int | None, now_ms: int, most: int) -> Row:
    live = seen.standing
    version: Cell = Cell("none", "faint") if live and live.version is None else known(live.version if live else None)
    letters = known(seen.dead_letters)
    return (
        Cell(cut(seen.name, most), "bad" if seen.problems else ""),
        version,
        known(seen.position),
        known(seen.lag(head)),
        format.number(seen.cursors),
        Cell(letters.text, "doubtful") if seen.dead_letters else letters,
        format.age(live.updated_ms, now_ms) if live else known(None),
        worker(seen, now_ms),
    )


def _rebuild_rows(shown: Sequence[SeenProjection], head: int | None, now_ms: int, most: int) -> Iterator[Row]:
    for seen in shown:
        if seen.rebuild is not None:
            to = known(head if seen.rebuild.until is None else seen.rebuild.until).text
            yield (
                cut(seen.name, most),
                known(seen.rebuild.version),
                f"{format.number(seen.rebuild.position or 0)} of {to}",
                format.age(seen.rebuild.updated_ms, now_ms),
            )


def _found(observed: Observed, now_ms: int) -> dict[str, Any]:
    return {
        "address": observed.address,
        "now_ms": now_ms,
        "head": observed.head,
        "projections": [_projection_json(seen, observed.head, now_ms) for seen in observed.projections],
        "problems": observed.problems,
    }


def _projection_json(seen: SeenProjection, head: int | None, now_ms: int) -> dict[str, Any]:
    live = seen.standing
    return {
        "projection": seen.name,
        "state": "damaged" if seen.problems else "ok",
        "reasons": list(seen.problems),
        "version": live.version if live else None,
        "position": seen.position,
        "lag": seen.lag(head),
        "streams": seen.cursors,
        "dead_letters": seen.dead_letters,
        "updated_ms": live.updated_ms if live else None,
        "rebuild": rebuild_json(seen.rebuild),
        "lease": lease_json(seen.lease, now_ms),
    }
