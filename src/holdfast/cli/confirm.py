"""Nothing is changed unasked: a plan is shown, then a person agrees, or `--yes` did so beforehand."""

from __future__ import annotations

import click

from holdfast.cli.output import Output

NOT_AGREED = 2
"""The exit code of a verb that had something to do and was not allowed to: usage."""


class Declined(click.exceptions.Exit):
    """A person said no. Reported as an interruption, so that a script goes no further."""

    def __init__(self) -> None:
        super().__init__(130)


def agreed(output: Output, question: str, *, dry_run: bool, yes: bool) -> bool:
    """Whether to go ahead with the plan that has just been shown.

    False on a dry run, and where nobody can be asked and `--yes` is missing: then it says how to go on.
    A person who says no ends the command.
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
