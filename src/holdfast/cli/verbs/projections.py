"""`holdfast projections`: the position of each projection; empty one, rebuild it, list and retry its dead letters."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from holdfast.cli.confirm import confirm
from holdfast.cli.format import cut
from holdfast.cli.load import load_projection
from holdfast.cli.options import Listing, asks_first, envelope_store, on_projections
from holdfast.cli.output import Cell, Output, Row
from holdfast.errors import Corrupt
from holdfast.operations.projections import (
    RebuildProjectionPlan,
    RetryDeadLettersPlan,
    plan_rebuild,
    plan_reset,
    plan_retry,
)
from holdfast.projections import DeadLetter, OnError, open_projections
from holdfast.status import format
from holdfast.status.projections import (
    DeadLetterListing,
    ProjectionsStatus,
    StoredProjection,
    observe_projections,
    read_dead_letters,
    require_projection,
)

AT_A_TERMINAL = 200
PROBLEM, NAME_IN_A_PIPE = 400, 80
PROJECTIONS = ("PROJECTION", "VERSION", "POSITION", "LAG", "STREAMS", "LETTERS", "AGE", "WORKER")
SPARE = (6, 4, 1)
REBUILDS = ("PROJECTION", "VERSION", "POSITION", "LAST MOVED")
LETTERS = ("POSITION", "STREAM", "SEQUENCE", "TYPE", "ATTEMPTS", "AGE", "ERROR")
NAME, ERROR = 40, 300
TENTHS = 10
"""The most progress lines that a pipe gets during a rebuild; a terminal gets a bar."""
PROJECTION_HELP = "The projection; also package.module:CLASS. It is run from there, in this process."


@click.command("reset")
@on_projections
@click.argument("name")
@asks_first("Only say what would be done.")
def reset(url: str, output: Output, *, name: str, dry_run: bool, yes: bool) -> int:
    """Empty a projection: read model, cursors and dead letters. The next catch-up begins at the first event.

    Readers find it empty until then; 'holdfast projections rebuild' makes it anew beside the live one instead. The
    plan is shown first. Events are never removed.

    \b
    Example: holdfast projections reset sqlite:///data/shop.db turnover --dry-run
    """
    plan = plan_reset(url, name)
    done = confirm(plan, output, dry_run=dry_run, yes=yes)
    found = {"address": plan.address, "projection": name, "dry_run": dry_run, "applied": done.outcome is not None}
    output.finish(envelope_store(plan.address), found | {"plan": plan.as_json()})
    return done.exit_code


@click.command("rebuild")
@on_projections
@click.argument("name")
@click.option("--projection", "given", required=True, metavar="FILE.py:CLASS", help=PROJECTION_HELP)
@click.option("--resume", is_flag=True, help="Go on with an unfinished rebuild of the same version.")
@click.option(
    "--put-aside", is_flag=True, help="Put events that cannot be handled aside as dead letters instead of stopping."
)
@asks_first("Only say what would be done.")
def rebuild(
    url: str, output: Output, *, name: str, given: str, resume: bool, put_aside: bool, dry_run: bool, yes: bool
) -> int:
    """Make a projection's read model anew from the first event, beside the live one, and switch over in one step.

    Readers have the live one until then, and a worker goes on with it. If this is cut short, nothing is switched, and
    --resume goes on where it stood. The plan is shown first.

    \b
    Example: holdfast projections rebuild sqlite:///data/shop.db turnover --projection turnover.py:Turnover
    """
    on_error = OnError(then="dead-letter") if put_aside else OnError()
    plan = plan_rebuild(url, load_projection(given, name), resume=resume, on_error=on_error)
    done = confirm(plan, output, dry_run=dry_run, yes=yes, tell=None if output.has_bars else _lines_of(plan, output))
    found = {"address": plan.address, "projection": name, "dry_run": dry_run, "applied": done.outcome is not None}
    result = done.outcome.result if done.outcome else None
    output.finish(envelope_store(plan.address), found | {"plan": plan.as_json(), "result": result})
    return done.exit_code


def _lines_of(plan: RebuildProjectionPlan, output: Output) -> Callable[[int, int], None]:
    """A progress callback that writes a line for each tenth of a rebuild."""
    said = 0

    def tell(done: int, total: int) -> None:
        nonlocal said
        tenth = TENTHS * done // max(1, total)
        if said < tenth < TENTHS:
            said = tenth
            position, head = format.number(plan.start + done), format.number(plan.start + total)
            output.line(f"read up to position {position} of {head}")
            sys.stdout.flush()

    return tell


@click.command("dead-letters")
@on_projections
@click.argument("name")
@click.option("--retry", is_flag=True, help="Handle them again, with --projection; those that succeed are removed.")
@click.option("--projection", "given", metavar="FILE.py:CLASS", help=PROJECTION_HELP)
@asks_first("Only say what would be done.")
def dead_letters(
    url: str, output: Output, *, name: str, retry: bool, given: str | None, dry_run: bool, yes: bool
) -> int:
    """List the events that a projection could not handle, oldest first; handle them again with --retry.

    An event that succeeds goes into the read model, and its letter is removed, in one commit. Newer events have been
    handled before it: the projection must not depend on their order.

    \b
    Example: holdfast projections dead-letters sqlite:///data/shop.db turnover
    """
    if retry and given is None:
        raise click.UsageError("--retry needs --projection FILE.py:CLASS, which handles the events.")
    if not retry and (given is not None or dry_run or yes):
        raise click.UsageError("--projection, --dry-run and --yes go with --retry: a list changes nothing.")
    now_ms = int(time.time() * 1000)
    plan: RetryDeadLettersPlan | None = None
    if given is not None:
        plan = plan_retry(url, load_projection(given, name))
        address, letters = plan.address, plan.letters
    else:
        with open_projections(url, read_only=True) as store:
            address, letters = store.address, read_dead_letters(store, require_projection(store, name))
    _draw_letters(output, letters, now_ms)
    found: dict[str, Any] = {"address": address, "projection": name, "now_ms": now_ms} | letters.as_json()
    code = Corrupt.exit_code if letters.problems else 0
    if plan is not None:
        done = confirm(plan, output, dry_run=dry_run, yes=yes)
        result = done.outcome.result if done.outcome else None
        found |= {"dry_run": dry_run, "applied": done.outcome is not None, "result": result}
        code = done.exit_code
    output.finish(envelope_store(address), found)
    return code


def _draw_letters(output: Output, letters: DeadLetterListing, now_ms: int) -> None:
    for problem in letters.problems:
        output.line([Cell("DAMAGED: ", "bad"), problem], wrap=True)
    shown = letters.found[:AT_A_TERMINAL] if output.is_terminal else letters.found
    if shown:
        output.table(LETTERS, _letter_rows(shown, now_ms), right=(0, 2, 4), spare=(5, 4))
    else:
        output.line("no dead letters")
    if len(letters.found) > len(shown):
        output.note(f"… and {format.number(len(letters.found) - len(shown))} more (a pipe and --json get all)")


def _letter_rows(letters: Sequence[DeadLetter], now_ms: int) -> list[Row]:
    return [
        (
            format.number(letter.position),
            cut(letter.stream, NAME),
            format.number(letter.sequence),
            cut(letter.type, NAME),
            format.number(letter.attempts),
            format.age(letter.when_ms, now_ms),
            Cell(cut(letter.error, ERROR), "bad"),
        )
        for letter in letters
    ]


VERBS = {"reset": reset, "rebuild": rebuild, "dead-letters": dead_letters}


@click.command("projections", cls=Listing, commands=VERBS)
@on_projections
def command(url: str, output: Output) -> int:
    """List the projections of a store: version, position, lag, cursors, dead letters, and who works on each.

    URL is sqlite:///path, rocksdb:///path, redis://host, postgresql://host/database, s3://bucket/path, gs://, az:// or
    file:///path (SlateDB), or the path of a store on this machine. Nothing is changed; a process that has the store
    open is neither fenced nor disturbed. LAG counts the events of all streams.

    \b
    'holdfast projections reset URL NAME' empties one,
    'holdfast projections rebuild URL NAME --projection FILE.py:CLASS' makes one anew beside the live one,
    'holdfast projections dead-letters URL NAME' lists the events that could not be handled.

    \b
    Example: holdfast projections sqlite:///data/shop.db
    """
    with open_projections(url, read_only=True) as store:
        observed = observe_projections(store)
    now_ms = int(time.time() * 1000)
    columns = shutil.get_terminal_size().columns if output.is_terminal else None
    _draw(output, observed, now_ms, columns // 3 if columns else NAME_IN_A_PIPE)
    output.finish(envelope_store(observed.address), observed.as_json(now_ms))
    return Corrupt.exit_code if observed.is_damaged else 0


def _draw(output: Output, observed: ProjectionsStatus, now_ms: int, most: int) -> None:
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


def _facts(observed: ProjectionsStatus) -> Iterator[tuple[str, str | Cell]]:
    yield "store", Cell(observed.address, "strong")
    yield "events", _known(observed.head)
    yield "projections", format.number(len(observed.projections))


def _row(seen: StoredProjection, head: int | None, now_ms: int, most: int) -> Row:
    live = seen.standing
    version: Cell = Cell("none", "faint") if live and live.version is None else _known(seen.version)
    letters = _known(seen.dead_letters)
    return (
        Cell(cut(seen.name, most), "bad" if seen.problems else ""),
        version,
        _known(seen.position),
        _known(seen.lag(head)),
        format.number(seen.cursors),
        Cell(letters.text, "doubtful") if seen.dead_letters else letters,
        format.age(live.updated_ms, now_ms) if live else _known(None),
        _worker(seen, now_ms),
    )


def _rebuild_rows(shown: Sequence[StoredProjection], head: int | None, now_ms: int, most: int) -> Iterator[Row]:
    for seen in shown:
        if seen.rebuild is not None:
            to = _known(head if seen.rebuild.until is None else seen.rebuild.until).text
            yield (
                cut(seen.name, most),
                _known(seen.rebuild.version),
                f"{format.number(seen.rebuild.position or 0)} of {to}",
                format.age(seen.rebuild.updated_ms, now_ms),
            )


def _known(number: int | None) -> Cell:
    return Cell(format.known(number), "doubtful" if number is None else "")


def _worker(seen: StoredProjection, now_ms: int) -> Cell:
    is_nobody = seen.lease is None or not seen.lease.until_ms
    return Cell(seen.worker(now_ms), "faint" if is_nobody else "" if seen.holder(now_ms) else "doubtful")
