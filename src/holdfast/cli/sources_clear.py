"""`holdfast sources clear`: let the sources of an index start over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
import msgspec

from holdfast.base import steps
from holdfast.cli import wording
from holdfast.cli.asking import NOT_AGREED, agreed
from holdfast.cli.output import Cell, Output
from holdfast.cli.sources_index import Observed, OpenedIndex, is_on_disk, observe, on_index, opened, store_of
from holdfast.cli.sources_positions import cut
from holdfast.errors import Conflict, Unavailable
from holdfast.index import records
from holdfast.index.resetting import CHUNK

COUNTED = 100_000
"""Beyond so many results it is only said that there are more: counting all could take as long as removing them."""
NAME = 40
UNFINISHED = "index.reset-unfinished"


class Removal(msgspec.Struct, frozen=True):
    """What would go, as it was seen. Two are equal if nothing has changed in between."""

    seen: Observed
    has_hash: bool
    """Also if it cannot be read."""
    results: int | None
    """At most one more than `COUNTED`; None: they stay."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What there is of each kind, and which."""
        found = []
        if self.seen.sources:
            names = wording.listed(cut(source.name, NAME) for source in self.seen.sources)
            found.append((wording.count(len(self.seen.sources), "checkpoint"), names))
        if self.seen.gap_count:
            names = wording.listed(cut(name, NAME) for name in sorted({gap.source_id for gap in self.seen.gaps}))
            found.append((wording.count(self.seen.gap_count, "recorded gap"), names))
        if self.has_hash:
            config_hash = self.seen.config_hash
            found.append(("the configuration hash", "damaged" if config_hash is None else f"{config_hash:016x}"))
        if self.results:
            many = self.results > COUNTED
            found.append((f"more than {COUNTED:,} results" if many else wording.count(self.results, "result"), "all"))
        return found

    @property
    def words(self) -> str:
        """Everything in one phrase."""
        *most, last = [what for what, _ in self.rows]
        return f"{', '.join(most)} and {last}" if most else last

    def as_json(self) -> dict[str, Any]:
        config_hash = self.seen.config_hash
        return {
            "checkpoints": [source.name for source in self.seen.sources],
            "gaps": self.seen.gap_count,
            "config_hash": None if config_hash is None else f"{config_hash:016x}",
            "results": None if self.results is None else min(self.results, COUNTED),
            "has_more_results": (self.results or 0) > COUNTED,
            "finishes_reset": False,
        }


@click.command("clear")
@on_index
@click.option("--results", "with_results", is_flag=True, help="Remove the results as well: nothing is left then.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(url: str, output: Output, *, with_results: bool, dry_run: bool, yes: bool) -> int:
    """Remove the checkpoints of an index, its recorded gaps and its configuration hash: its sources then start over.

    Results stay unless --results is given. What would go is shown first. An index on disk that another process has
    open is refused; on a server, whoever has it open can write nothing more to it.

    \b
    Example: holdfast sources clear sqlite:///data/turnover.db --results --dry-run
    """
    try:
        with opened(url, read_only=True) as seen:
            plan = _planned(seen, with_results)
    except Unavailable as error:
        if error.code != UNFINISHED:
            raise
        return _finish_reset(url, output, error.about or "", dry_run=dry_run, yes=yes)
    address = plan.seen.address
    if not plan.rows:
        output.line("nothing to remove")
        output.finish(store_of(address), _found(address, plan.as_json(), dry_run=dry_run, applied=False))
        return 0
    _show(output, plan)
    go_ahead = agreed(output, f"Remove {plan.words} from {address}?", dry_run=dry_run, yes=yes)
    if go_ahead:
        with opened(url, read_only=False) as seen:
            _remove(output, seen, plan)
        output.line(Cell(f"removed {plan.words}", "good"))
    output.finish(store_of(address), _found(address, plan.as_json(), dry_run=dry_run, applied=go_ahead))
    return 0 if go_ahead or dry_run else NOT_AGREED


def _planned(seen: OpenedIndex, with_results: bool) -> Removal:
    results = sum(1 for _ in islice(seen.index.results.scan(), COUNTED + 1)) if with_results else None
    return Removal(observe(seen), seen.store.get("meta", records.HASH_KEY) is not None, results)


def _show(output: Output, plan: Removal) -> None:
    output.table(("REMOVE", "WHICH"), plan.rows)
    output.line(f"to remove: {plan.words}" + ("; results stay" if plan.results is None else ""))
    _warn(output, plan.seen.address)


def _warn(output: Output, address: str) -> None:
    if not is_on_disk(address):
        output.note("whoever has this index open will be able to write nothing more to it")


def _remove(output: Output, seen: OpenedIndex, plan: Removal) -> None:
    """Remove what was shown; nothing if that is no longer what is there.

    A crash in the middle of the results leaves a marker, and the next opening finishes that; one after it leaves an
    empty index with its hash, which doing this again removes.
    """
    if _planned(seen, plan.results is not None) != plan:
        raise Conflict(
            f"{seen.address} has changed since this was shown: somebody writes to it.",
            code="index.changed",
            about=seen.address,
            unchanged="the index",
            next_step="stop whoever writes to it, then do this again",
        )
    if plan.results is not None:
        with _watched(output, plan.results):
            seen.index.reset()
    seen.index.checkpoints.clear_checkpoints()


def _finish_reset(url: str, output: Output, address: str, *, dry_run: bool, yes: bool) -> int:
    """Opening an index that was being emptied finishes that, whatever was asked for here: the rest is lost already."""
    output.line("to remove: all that is left, results included: the index was being emptied, and that was cut short")
    _warn(output, address)
    go_ahead = agreed(output, f"Remove all that is left in {address}?", dry_run=dry_run, yes=yes)
    if go_ahead:
        with _watched(output, 0), opened(url, read_only=False) as seen:
            seen.index.checkpoints.clear_checkpoints()
        output.line(Cell("removed all that was left", "good"))
    output.finish(store_of(address), _found(address, {"finishes_reset": True}, dry_run=dry_run, applied=go_ahead))
    return 0 if go_ahead or dry_run else NOT_AGREED


def _found(address: str, plan: dict[str, Any], *, dry_run: bool, applied: bool) -> dict[str, Any]:
    return {"address": address, "dry_run": dry_run, "applied": applied, "plan": plan}


@contextlib.contextmanager
def _watched(output: Output, results: int) -> Iterator[None]:
    """A bar that follows the index's own steps; without an end where nobody knows how many there are."""
    with output.bar("removing", results if results <= COUNTED else 0, unit="items") as bar:

        def observer(name: str, phase: str, _: float) -> None:
            if name == "reset.clear":
                bar.advance(CHUNK if phase == "end" else 0)

        stop = steps.observe(observer)
        try:
            yield
        finally:
            stop()
