"""`holdfast gc`: remove what crashes left behind."""

from __future__ import annotations

import click

from holdfast.cli.options import Duration, on_store
from holdfast.cli.output import Output
from holdfast.cli.removing import carry_out
from holdfast.status.checkpoints import Opened


@click.command("gc")
@on_store
@click.option(
    "--older-than",
    type=Duration(),
    default="1h",
    show_default=True,
    help="Leave alone what is younger: somebody may be writing it.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(opened: Opened, output: Output, *, older_than: float, dry_run: bool, yes: bool) -> int:
    """Remove what no checkpoint owns: sidecars, batch objects and temporary files of interrupted writes.

    No checkpoint is removed, not even a damaged one, and neither is anything that a damaged one may own. Files
    with names that Holdfast does not give are never touched.

    \b
    Example: holdfast gc s3://bucket/orders --older-than 2h --dry-run
    """
    return carry_out(opened, output, lambda: opened.store.plan_cleanup(older_than=older_than), dry_run=dry_run, yes=yes)
