"""`holdfast prune`: remove old checkpoints."""

from __future__ import annotations

import click

from holdfast.cli.options import on_store
from holdfast.cli.output import Output
from holdfast.cli.removing import carry_out
from holdfast.status.checkpoints import Opened


@click.command("prune")
@on_store
@click.option("--keep", type=int, required=True, metavar="N", help="How many complete checkpoints stay; at least 1.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(opened: Opened, output: Output, *, keep: int, dry_run: bool, yes: bool) -> int:
    """Remove old checkpoints, and with them what no checkpoint owns.

    The newest N complete checkpoints stay, and so does everything newer than them and every ancestor that an
    incremental one needs. Complete means: all of its state is there and every sink has committed.

    \b
    Example: holdfast prune /data/orders --keep 10 --dry-run
    """
    return carry_out(opened, output, lambda: opened.store.plan_prune(keep), dry_run=dry_run, yes=yes)
