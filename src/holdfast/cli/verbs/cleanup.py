"""`holdfast prune` and `holdfast gc`: remove old checkpoints, and what no checkpoint owns."""

from __future__ import annotations

import click

from holdfast.cli.confirm import confirm
from holdfast.cli.options import LengthOfTime, asks_first, on_store
from holdfast.cli.output import Output
from holdfast.operations.cleanup import RemovalPlan, plan_gc, plan_prune
from holdfast.status.checkpoints import OpenedStore

_NOTHING = {"checkpoints": [], "orphans": [], "bytes": 0}


@click.command("prune")
@on_store
@click.option("--keep", type=int, required=True, metavar="N", help="How many complete checkpoints stay; at least 1.")
@asks_first("Only say what would be removed.")
def prune(opened: OpenedStore, output: Output, *, keep: int, dry_run: bool, yes: bool) -> int:
    """Remove old checkpoints, and with them what no checkpoint owns.

    The newest N complete checkpoints stay, and so does everything newer than them and every ancestor that an
    incremental one needs. Complete means: all of its state is there and every sink has committed.

    \b
    Example: holdfast prune /data/orders --keep 10 --dry-run
    """
    return _remove(plan_prune(opened, keep), output, dry_run=dry_run, yes=yes)


@click.command("gc")
@on_store
@click.option(
    "--older-than",
    type=LengthOfTime(),
    default="1h",
    show_default=True,
    help="Keep objects younger than this: another process may be writing them.",
)
@asks_first("Only say what would be removed.")
def gc(opened: OpenedStore, output: Output, *, older_than: float, dry_run: bool, yes: bool) -> int:
    """Remove what no checkpoint owns: sidecars, batch objects and temporary files of interrupted writes.

    No checkpoint is removed, not even a damaged one, and neither is anything that a damaged one may own. Files
    with names that Holdfast does not give are never touched.

    \b
    Example: holdfast gc s3://bucket/orders --older-than 2h --dry-run
    """
    return _remove(plan_gc(opened, older_than), output, dry_run=dry_run, yes=yes)


def _remove(plan: RemovalPlan, output: Output, *, dry_run: bool, yes: bool) -> int:
    done = confirm(plan, output, dry_run=dry_run, yes=yes)
    data = {"dry_run": dry_run, "applied": done.outcome is not None, "kept": plan.kept, "plan": plan.as_json()}
    removed = done.outcome.result if done.outcome else _NOTHING
    output.finish(plan.opened.address, data | {"removed": removed})
    return done.exit_code
