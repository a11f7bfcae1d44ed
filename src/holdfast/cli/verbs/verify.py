"""`holdfast verify`: check that checkpoints are complete and undamaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import click

from holdfast.cli.options import CheckpointId, on_store
from holdfast.cli.output import Cell, Output, Style
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore, resolve, why_empty
from holdfast.status.verify import STATES, Verdict, Verifier, VerifyReport, bytes_ahead


@click.command("verify")
@on_store
@click.argument("ids", type=CheckpointId(), nargs=-1, metavar="[ID ...]")
@click.option("--deep", is_flag=True, help="Read every byte of state; otherwise presence and sizes are checked.")
@click.option("--quiet", "-q", is_flag=True, help="Print only what is not right, and nothing at all if everything is.")
@click.option(
    "--state-partitions",
    "vnode_count",
    type=click.IntRange(1, 0xFFFF),
    metavar="N",
    help="Warn where a checkpoint was written with another number of state partitions.",
)
@click.option("--vnode-count", "old_name", type=click.IntRange(1, 0xFFFF), hidden=True)
def command(
    opened: OpenedStore,
    output: Output,
    *,
    ids: tuple[int | Literal["latest"], ...],
    deep: bool,
    quiet: bool,
    vnode_count: int | None,
    old_name: int | None,
) -> int:
    """Check that checkpoints are what was written: all of them, or those named.

    Every manifest's checksum, and that the state it names is there in its full size; with --deep every byte.
    Exits 6 if anything is damaged, 8 if something could not be read, 3 if a named checkpoint is not there.
    A misplaced 'latest' and leftovers of crashes are notes: they harm nothing.

    \b
    Example: holdfast verify s3://bucket/orders --deep --quiet     (all cron needs)
    """
    there = opened.store.list_ids()
    wanted = list(dict.fromkeys(resolve(opened, one) for one in ids)) if ids else there[::-1]
    show = _reporter(output, wanted, quiet)
    total = len(wanted)
    if deep:
        total = bytes_ahead(opened, wanted) if output.has_bars else 0
    with output.bar("verifying", total, unit="bytes" if deep else "items") as bar:
        progress = bar.advance if deep else None
        verifier = Verifier(opened, there, deep=deep, vnode_count=vnode_count or old_name, progress=progress)
        verdicts = []
        for number in wanted:
            bar.describe(f"verifying {number}")
            verdicts.append(verifier.verdict(number))
            show(verdicts[-1])
            bar.advance(0 if deep else 1)
    report = verifier.report(verdicts, with_orphans=not ids)
    if report.orphans_problem:
        output.note(f"orphans could not be looked for: {report.orphans_problem}")
    _summarise(opened, output, report, quiet=quiet)
    if not quiet or report.count("ok") < len(verdicts):
        _notes(opened, output, report)
    output.finish(opened.address, report.as_json())
    return report.exit_code


def _reporter(output: Output, wanted: Sequence[int], quiet: bool) -> Callable[[Verdict], None]:
    """A function that prints the line of a verdict."""
    room = max((len(str(number)) for number in wanted), default=0)

    def show(verdict: Verdict) -> None:
        if quiet and verdict.state == "ok":
            return
        word = verdict.state if verdict.state == "ok" else verdict.state.upper()
        style: Style = "good" if verdict.state == "ok" else "bad"
        after = ["  ", verdict.reason] if verdict.reason else []
        output.line([f"{verdict.checkpoint_id:>{room}}  ", Cell(word, style), *after], wrap=True)

    return show


def _summarise(opened: OpenedStore, output: Output, report: VerifyReport, *, quiet: bool) -> None:
    if not report.verdicts:
        output.note(f"{opened.address} has no checkpoints: there is nothing to verify.")
        if hint := why_empty(opened):
            output.note(hint)
        return
    is_all_ok = report.count("ok") == len(report.verdicts)
    if quiet and is_all_ok:
        return
    how = "every byte" if report.deep else "manifests, presence and sizes"
    found = ", ".join(f"{format.number(n)} {state}" for state in STATES if (n := report.count(state)))
    summary = f"{format.count(len(report.verdicts), 'checkpoint')} ({how}): {found}"
    output.line(Cell(summary, "good" if is_all_ok else "bad"))


def _notes(opened: OpenedStore, output: Output, report: VerifyReport) -> None:
    warned: dict[str, list[int]] = defaultdict(list)
    for verdict in report.verdicts:
        for warning in verdict.warnings:
            warned[warning].append(verdict.checkpoint_id)
    for warning, numbers in warned.items():
        output.note(f"checkpoint {format.listed(numbers)}: {warning}")
    if report.latest.problem:
        output.note(f"{report.latest.problem}; to repair it: {opened.hint('recover')}")
    if report.orphans:
        what = f"{format.count(len(report.orphans), 'object')} ({format.size(report.orphan_bytes)})"
        output.note(f"no checkpoint owns {what}; to see them: {opened.hint('gc', '--dry-run')}")
    if report.count("damaged"):
        output.note(f"to see what a pipeline would resume from: {opened.hint('recover', '--dry-run')}")
