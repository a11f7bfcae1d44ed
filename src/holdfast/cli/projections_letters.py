"""`holdfast projections dead-letters`: the events that could not be handled, and handling them again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from holdfast.cli import wording
from holdfast.cli.asking import NOT_AGREED, agreed
from holdfast.cli.output import Cell, Output, Row
from holdfast.cli.projections_loading import load_projection
from holdfast.cli.projections_seen import SeenProjection, pages, required
from holdfast.cli.projections_store import asking_first, on_projections, store_of, warn_of_fencing
from holdfast.cli.sources_positions import cut
from holdfast.errors import Corrupt, Invalid
from holdfast.projections import DeadLetter, ProjectionRunner, ProjectionStore, keys, open_projections
from holdfast.projections.projection import ProjectionLike
from holdfast.projections.state import live_build

AT_A_TERMINAL = 200
NAME, ERROR = 40, 300
LETTERS = ("POSITION", "STREAM", "SEQUENCE", "TYPE", "ATTEMPTS", "AGE", "ERROR")


class Letters(msgspec.Struct, frozen=True):
    """The dead letters of a live read model: those that can be read, oldest first, and what is wrong with others."""

    found: list[DeadLetter]
    problems: list[str]


@click.command("dead-letters")
@on_projections
@click.argument("name")
@click.option("--retry", is_flag=True, help="Handle them again, with --projection; those that succeed are removed.")
@click.option(
    "--projection",
    "given",
    metavar="FILE.py:CLASS",
    help="The projection; also package.module:CLASS. It is run from there, in this process.",
)
@asking_first
def command(url: str, output: Output, *, name: str, retry: bool, given: str | None, dry_run: bool, yes: bool) -> int:
    """List the events that a projection could not handle, oldest first; handle them again with --retry.

    Each one that succeeds goes into the read model in one commit with the removal of its letter. It comes after events
    that were handled since: the handler has to bear that.

    \b
    Example: holdfast projections dead-letters sqlite:///data/shop.db turnover
    """
    projection = _wanted(retry, given, name, changes_something=dry_run or yes)
    now_ms = int(time.time() * 1000)
    with open_projections(url, read_only=True) as store:
        address, seen = store.address, required(store, name)
        letters = _letters(store, seen)
    if projection is not None:
        _check_version(projection, seen)
    _draw(output, letters, now_ms)
    found: dict[str, Any] = {"address": address, "projection": name, "now_ms": now_ms}
    found |= {"dead_letters": [msgspec.to_builtins(letter) for letter in letters.found], "problems": letters.problems}
    code = Corrupt.exit_code if letters.problems else 0
    if projection is not None:
        code, result = _retry(url, output, projection, address, letters, dry_run=dry_run, yes=yes)
        found |= {"dry_run": dry_run, "applied": result is not None, "result": result}
    output.finish(store_of(address), found)
    return code


def _wanted(retry: bool, given: str | None, name: str, *, changes_something: bool) -> ProjectionLike | None:
    if retry and given is None:
        raise click.UsageError("--retry needs --projection FILE.py:CLASS, which handles the events.")
    if not retry and (given is not None or changes_something):
        raise click.UsageError("--projection, --dry-run and --yes go with --retry: a list changes nothing.")
    return load_projection(given, name) if given is not None else None


def _letters(store: ProjectionStore, seen: SeenProjection) -> Letters:
    letters = Letters([], [])
    if seen.standing is None:
        return letters
    for key, value in pages(store.kv, "letters", keys.of_build(live_build(seen.name).escaped, seen.standing.build)):
        try:
            letters.found.append(keys.unseal(key, value, DeadLetter, "a dead letter", store.address))
        except Corrupt as error:
            letters.problems.append(error.message.removeprefix(f"{store.address}: "))
    return letters


def _check_version(projection: ProjectionLike, seen: SeenProjection) -> None:
    version = seen.standing.version if seen.standing else None
    if version != projection.version:
        raise Invalid(
            f"The read model of projection {seen.name[:200]!r} was made by version {version}, this is version "
            f"{projection.version}.",
            code="projection.version",
            about=f"projection {seen.name[:200]!r}",
            unchanged="everything",
            next_step="name the version that made it, or rebuild it: holdfast projections rebuild",
        )


def _draw(output: Output, letters: Letters, now_ms: int) -> None:
    for problem in letters.problems:
        output.line([Cell("DAMAGED: ", "bad"), problem], wrap=True)
    shown = letters.found[:AT_A_TERMINAL] if output.is_terminal else letters.found
    if shown:
        output.table(LETTERS, _rows(shown, now_ms), right=(0, 2, 4), spare=(5, 4))
    else:
        output.line("no dead letters")
    if len(letters.found) > len(shown):
        output.note(f"… and {wording.number(len(letters.found) - len(shown))} more (a pipe and --json get all)")


def _rows(letters: Sequence[DeadLetter], now_ms: int) -> list[Row]:
    return [
        (
            wording.number(letter.position),
            cut(letter.stream, NAME),
            wording.number(letter.sequence),
            cut(letter.type, NAME),
            wording.number(letter.attempts),
            wording.age(letter.when_ms, now_ms),
            Cell(cut(letter.error, ERROR), "bad"),
        )
        for letter in letters
    ]


def _retry(
    url: str, output: Output, projection: ProjectionLike, address: str, letters: Letters, *, dry_run: bool, yes: bool
) -> tuple[int, dict[str, Any] | None]:
    """The exit code, and what became of it if it was done."""
    if letters.problems:
        raise Corrupt(
            f"{address}: a dead letter of projection {projection.name[:200]!r} is damaged.",
            code="store.record",
            about=f"projection {projection.name[:200]!r}",
            unchanged="the store",
            next_step="rebuild the projection: holdfast projections rebuild",
        )
    if not letters.found:
        return 0, None
    output.line(f"to handle again: {wording.count(len(letters.found), 'event')}, with version {projection.version}")
    warn_of_fencing(output, address)
    question = f"Handle {wording.count(len(letters.found), 'event')} again in {address}?"
    if not agreed(output, question, dry_run=dry_run, yes=yes):
        return 0 if dry_run else NOT_AGREED, None
    with open_projections(url) as store:
        left = ProjectionRunner(store).retry_dead_letters(projection)
    handled = max(0, len(letters.found) - len(left))
    output.line(Cell(f"handled {wording.count(handled, 'event')}", "good"))
    if left:
        where = wording.listed(letter.position for letter in left)
        output.line(Cell(f"still failing: {wording.count(len(left), 'event')}, at position {where}", "bad"))
    result = {"handled": handled, "left": [letter.position for letter in left]}
    return Invalid.exit_code if left else 0, result
