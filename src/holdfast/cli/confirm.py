"""Confirmation: show a plan, ask the user (or take `--yes`), then apply it."""

from __future__ import annotations

from collections.abc import Callable

import click
import msgspec

from holdfast.cli.output import Bar, Cell, Output
from holdfast.operations.plan import Outcome, Plan, Table
from holdfast.status import format

NOT_AGREED = 2
"""The exit code of a verb whose plan needed `--yes` and did not get it: a usage error."""
SHOWN = 200
"""The most rows of a plan that a terminal shows."""


class Confirmed(msgspec.Struct, frozen=True):
    """The result of `confirm`."""

    exit_code: int
    outcome: Outcome | None = None
    """None if the plan was not applied."""


class Declined(click.exceptions.Exit):
    """The user said no. Exits like an interruption, so that a script stops as well."""

    def __init__(self) -> None:
        super().__init__(130)


def confirm(
    plan: Plan,
    output: Output,
    *,
    dry_run: bool,
    yes: bool,
    tell: Callable[[int, int], None] | None = None,
) -> Confirmed:
    """Show a plan, ask for confirmation, and apply the plan.

    `tell` is called with the same progress as the bar. Raises `Declined`, which ends the command, if the user says no.
    """
    _show(plan, output)
    if plan.is_empty:
        return Confirmed(0)
    if not _agreed(output, plan.question, dry_run=dry_run, yes=yes):
        return Confirmed(0 if dry_run else NOT_AGREED)
    try:
        with output.bar(plan.activity, plan.amount, unit="items") as bar:
            outcome = plan.apply(_BarProgress(bar, plan.amount, tell))
    except KeyboardInterrupt as interruption:
        for note in getattr(interruption, "__notes__", ()):
            output.note(note)
        raise
    for line in outcome.lines:
        output.line(Cell(line, "good"))
    for line in outcome.problems:
        output.line(Cell(line, "bad"))
    return Confirmed(outcome.exit_code, outcome)


def _show(plan: Plan, output: Output) -> None:
    for line in plan.lines():
        if isinstance(line, str):
            output.line(line)
        else:
            _show_table(line, output)
    for warning in plan.warnings:
        output.note(warning)


def _show_table(table: Table, output: Output) -> None:
    rows = table.rows[:SHOWN] if output.is_terminal else table.rows
    output.table(table.header, rows, right=table.right)
    if len(rows) < len(table.rows):
        output.note(f"… and {format.number(len(table.rows) - len(rows))} more (--json lists them all)")


def _agreed(output: Output, question: str, *, dry_run: bool, yes: bool) -> bool:
    """Whether to apply the plan that has just been shown.

    False on a dry run. Also False without `--yes` if there is no terminal to ask at; a note then says to add `--yes`.
    """
    if dry_run:
        output.note("nothing was changed: this was a dry run")
        return False
    if yes:
        return True
    if output.can_ask:
        if output.ask(question):
            return True
        output.note("nothing was changed")
        raise Declined
    output.note("nothing was changed: there is no terminal to ask at. To go ahead, add --yes")
    return False


class _BarProgress:
    """Passes the progress of a plan on to a bar."""

    def __init__(self, bar: Bar, amount: int, tell: Callable[[int, int], None] | None) -> None:
        self._bar = bar
        self._amount = amount
        self._tell = tell
        self._at = 0

    def __call__(self, done: int, total: int) -> None:
        # Stop at the end of the bar: the plan may do more than its amount, such as work that was added meanwhile.
        at = min(done, self._amount) if self._amount else done
        self._bar.advance(max(0, at - self._at))
        self._at = max(self._at, at)
        if self._tell:
            self._tell(done, total)
