"""`holdfast verify`: is everything what was written?"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import click
import msgspec

from holdfast.checkpoints.catalog import in_parallel
from holdfast.checkpoints.orphans import Orphan
from holdfast.checkpoints.validate import Validator
from holdfast.cli import pointer
from holdfast.cli.options import CheckpointId, on_store
from holdfast.cli.output import Cell, Output, Style
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.status import format
from holdfast.status.checkpoints import Opened, look_at, resolve, why_empty, without_warnings

State = Literal["ok", "damaged", "unreadable", "missing"]
_STYLES: dict[State, Style] = {"ok": "good", "damaged": "bad", "unreadable": "bad", "missing": "bad"}


class Verdict(msgspec.Struct, frozen=True):
    """What was found about one checkpoint."""

    checkpoint_id: int
    state: State
    reason: str | None = None
    warnings: list[str] = []


@click.command("verify")
@on_store
@click.argument("ids", type=CheckpointId(), nargs=-1, metavar="[ID ...]")
@click.option("--deep", is_flag=True, help="Read every byte of state; otherwise presence and sizes are checked.")
@click.option("--quiet", "-q", is_flag=True, help="Print only what is not right, and nothing at all if everything is.")
@click.option("--vnode-count", type=click.IntRange(1, 0xFFFF), help="Warn where a checkpoint has another count.")
def command(
    opened: Opened,
    output: Output,
    *,
    ids: tuple[int | Literal["latest"], ...],
    deep: bool,
    quiet: bool,
    vnode_count: int | None,
) -> int:
    """Check that checkpoints are what was written: all of them, or those named.

    Every manifest's checksum, and that the state it names is there in its full size; with --deep every byte.
    Exits 6 if anything is damaged, 8 if something could not be read, 3 if a named checkpoint is not there.
    A misplaced 'latest' and leftovers of crashes are notes: they harm nothing.

    \b
    Example: holdfast verify s3://bucket/orders --deep --quiet     (all cron needs)
    """
    there = opened.store.list_ids()
    existing = set(there)
    wanted = list(dict.fromkeys(resolve(opened, one) for one in ids)) if ids else there[::-1]
    report = _reporter(output, wanted, quiet)
    total = _bytes_ahead(opened, output, wanted) if deep else len(wanted)
    with output.bar("verifying", total, unit="bytes" if deep else "items") as bar:
        validator = Validator(opened.catalog, vnode_count, deep=deep, progress=bar.advance if deep else None)
        verdicts = []
        for number in wanted:
            bar.describe(f"verifying {number}")
            verdicts.append(report(_judge(validator, number, is_there=number in existing)))
            bar.advance(0 if deep else 1)
    damaged = [verdict.checkpoint_id for verdict in verdicts if verdict.state == "damaged"]
    latest = pointer.observe(opened.catalog, there, damaged)
    orphans = [] if ids else _orphans(opened, output)
    _summarise(opened, output, verdicts, deep=deep, quiet=quiet)
    if not quiet or any(verdict.state != "ok" for verdict in verdicts):
        _notes(opened, output, verdicts, latest, orphans)
    counts = {state: sum(verdict.state == state for verdict in verdicts) for state in _STYLES}
    data: dict[str, Any] = {
        "deep": deep,
        "checkpoints": msgspec.to_builtins(verdicts),
        "counts": counts,
        "latest": latest.as_json(),
        "orphans": {"count": len(orphans), "bytes": sum(orphan.bytes for orphan in orphans)},
    }
    output.finish(opened.address, data)
    return _exit_code(counts)


def _exit_code(counts: dict[State, int]) -> int:
    """The gravest finding decides: damage is certain, the rest may pass."""
    if counts["damaged"]:
        return Corrupt.exit_code
    if counts["unreadable"]:
        return Unavailable.exit_code
    return NotFound.exit_code if counts["missing"] else 0


def _judge(validator: Validator, checkpoint_id: int, *, is_there: bool) -> Verdict:
    if not is_there:
        return Verdict(checkpoint_id, "missing", "there is no such checkpoint")
    try:
        result = validator.validate(checkpoint_id)
    except (Corrupt, Invalid) as error:
        return Verdict(checkpoint_id, "damaged", error.message)
    except HoldfastError as error:
        return Verdict(checkpoint_id, "unreadable", error.message)
    warnings = [issue.message for issue in result.issues if not issue.is_fatal]
    return Verdict(checkpoint_id, "ok" if result.valid else "damaged", result.reason or None, warnings)


def _reporter(output: Output, wanted: Sequence[int], quiet: bool) -> Callable[[Verdict], Verdict]:
    """Prints a line for each checkpoint as soon as it is known."""
    room = max((len(str(number)) for number in wanted), default=0)

    def report(verdict: Verdict) -> Verdict:
        if not (quiet and verdict.state == "ok"):
            word = verdict.state if verdict.state == "ok" else verdict.state.upper()
            after = ["  ", verdict.reason] if verdict.reason else []
            output.line([f"{verdict.checkpoint_id:>{room}}  ", Cell(word, _STYLES[verdict.state]), *after], wrap=True)
        return verdict

    return report


def _summarise(opened: Opened, output: Output, verdicts: list[Verdict], *, deep: bool, quiet: bool) -> None:
    if not verdicts:
        output.note(f"{opened.address} has no checkpoints: there is nothing to verify.")
        if hint := why_empty(opened):
            output.note(hint)
        return
    wrong = [verdict for verdict in verdicts if verdict.state != "ok"]
    if quiet and not wrong:
        return
    how = "every byte" if deep else "manifests, presence and sizes"
    found = [
        f"{format.number(n)} {state}"
        for state in ("ok", "damaged", "unreadable", "missing")
        if (n := sum(verdict.state == state for verdict in verdicts))
    ]
    summary = f"{format.count(len(verdicts), 'checkpoint')} ({how}): {', '.join(found)}"
    output.line(Cell(summary, "bad" if wrong else "good"))


def _notes(
    opened: Opened, output: Output, verdicts: list[Verdict], latest: pointer.Pointer, orphans: list[Orphan]
) -> None:
    warned: dict[str, list[int]] = defaultdict(list)
    for verdict in verdicts:
        for warning in verdict.warnings:
            warned[warning].append(verdict.checkpoint_id)
    for warning, numbers in warned.items():
        output.note(f"checkpoint {format.listed(numbers)}: {warning}")
    if latest.problem:
        output.note(f"{latest.problem}; to repair it: {opened.hint('recover')}")
    if orphans:
        total = format.size(sum(orphan.bytes for orphan in orphans))
        what = format.count(len(orphans), "object")
        output.note(f"no checkpoint owns {what} ({total}); to see them: {opened.hint('gc', '--dry-run')}")
    if any(verdict.state == "damaged" for verdict in verdicts):
        output.note(f"to see what a pipeline would resume from: {opened.hint('recover', '--dry-run')}")


def _orphans(opened: Opened, output: Output) -> list[Orphan]:
    try:
        with without_warnings():
            return opened.store.plan_cleanup().orphans
    except HoldfastError as error:
        output.note(f"orphans could not be looked for: {error.message}")
        return []


def _bytes_ahead(opened: Opened, output: Output, wanted: list[int]) -> int:
    """How many bytes of state a deep look will read, as far as manifests tell: for a bar, so only if one is seen."""
    if not output.has_bars:
        return 0
    total = 0
    batches: dict[str, int] = {}
    for seen in in_parallel(lambda number: look_at(opened, number), wanted):
        if seen.manifest is None:
            continue
        own = seen.manifest.own
        batches |= {batch.key: batch.bytes for batch in seen.manifest.needed_batches}
        total += own.sidecar.bytes if own.sidecar else 0
        if not seen.manifest.is_ours:
            with contextlib.suppress(HoldfastError):
                info = opened.store.objects.info(opened.catalog.sidecar_key(seen.checkpoint_id, seen.manifest))
                total += info.size if info else 0
    return min(total + sum(batches.values()), 1 << 62)
