"""`holdfast projections reset`: empty a projection, so that it begins again at the first event."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
import msgspec

from holdfast.base import steps
from holdfast.cli import wording
from holdfast.cli.asking import NOT_AGREED, agreed
from holdfast.cli.output import Cell, Output
from holdfast.cli.projections_seen import SeenProjection, pages, required
from holdfast.cli.projections_store import asking_first, on_projections, store_of, warn_of_fencing
from holdfast.cli.projections_words import known, lease_json, rebuild_json, worker
from holdfast.errors import Conflict
from holdfast.projections import ProjectionRunner, ProjectionStore, keys, open_projections
from holdfast.projections.rebuild import CHUNK
from holdfast.projections.state import live_build
from holdfast.projections.view import has_sql, table_prefix

COUNTED = 100_000
"""Beyond so many keys it is only said that there are more."""


class Emptying(msgspec.Struct, frozen=True):
    """What would go, as it was seen."""

    seen: SeenProjection
    head: int
    keys: int
    """Of the read model; at most one more than `COUNTED`."""
    tables: int

    @property
    def rows(self) -> Iterator[tuple[str, str | Cell]]:
        """What there is of each kind, and which."""
        many = self.keys > COUNTED
        kept = [f"more than {COUNTED:,} keys" if many else wording.count(self.keys, "key")]
        kept += [wording.count(self.tables, "table")] if self.tables else []
        yield "the read model", f"{' and '.join(kept)}, up to position {known(self.seen.position).text}"
        yield wording.count(self.seen.cursors, "cursor"), "all"
        if self.seen.dead_letters:
            yield wording.count(self.seen.dead_letters, "dead letter"), "their events are read again like the others"
        if self.seen.rebuild is not None:
            at = wording.number(self.seen.rebuild.position or 0)
            yield "an unfinished rebuild", f"of version {known(self.seen.rebuild.version).text}, at position {at}"

    def as_json(self, now_ms: int) -> dict[str, Any]:
        live = self.seen.standing
        return {
            "version": live.version if live else None,
            "position": self.seen.position,
            "keys": min(self.keys, COUNTED),
            "has_more_keys": self.keys > COUNTED,
            "tables": self.tables,
            "cursors": self.seen.cursors,
            "dead_letters": self.seen.dead_letters,
            "rebuild": rebuild_json(self.seen.rebuild),
            "events_to_read": self.head,
            "lease": lease_json(self.seen.lease, now_ms),
        }


@click.command("reset")
@on_projections
@click.argument("name")
@asking_first
def command(url: str, output: Output, *, name: str, dry_run: bool, yes: bool) -> int:
    """Empty a projection: read model, cursors and dead letters. The next catch-up begins at the first event.

    Readers find it empty until then; 'holdfast projections rebuild' makes it anew beside the live one instead. What
    would go is shown first. Events are never removed.

    \b
    Example: holdfast projections reset sqlite:///data/shop.db turnover --dry-run
    """
    now_ms = int(time.time() * 1000)
    with open_projections(url, read_only=True) as store:
        address, plan = store.address, _planned(store, name)
    _show(output, address, plan, now_ms)
    go_ahead = agreed(output, f"Empty projection {name!r} of {address}?", dry_run=dry_run, yes=yes)
    if go_ahead:
        with open_projections(url) as store:
            _check_same(store, name, plan)
            with _watched(output, plan.keys):
                ProjectionRunner(store).reset(name)
        output.line([Cell("emptied ", "good"), name])
    found = {"address": address, "projection": name, "dry_run": dry_run, "applied": go_ahead}
    output.finish(store_of(address), found | {"plan": plan.as_json(now_ms)})
    return 0 if go_ahead or dry_run else NOT_AGREED


def _planned(store: ProjectionStore, name: str) -> Emptying:
    seen = required(store, name)
    escaped, build = live_build(name).escaped, seen.standing.build if seen.standing else 1
    many = sum(1 for _ in islice(pages(store.kv, "views", keys.of_build(escaped, build)), COUNTED + 1))
    tables = len(store.kv.tables(table_prefix(store.kv, escaped, build))) if has_sql(store.kv) else 0
    return Emptying(seen, store.position, many, tables)


def _show(output: Output, address: str, plan: Emptying, now_ms: int) -> None:
    output.table(("REMOVE", "WHICH"), list(plan.rows))
    output.line(f"to read again: {wording.count(plan.head, 'event')}, when it is next caught up")
    output.line(["works on it: ", worker(plan.seen, now_ms)])
    warn_of_fencing(output, address)


def _check_same(store: ProjectionStore, name: str, plan: Emptying) -> None:
    """A worker that goes on meanwhile is nobody's surprise; another read model in the place of the one shown is."""
    shown, found = plan.seen.standing, required(store, name).standing
    if (shown and shown.build) != (found and found.build):
        raise Conflict(
            f"Projection {name[:200]!r} was emptied or rebuilt by somebody else since this was shown.",
            code="projection.changed",
            about=f"projection {name[:200]!r}",
            unchanged="the store",
            next_step="look at what is there now, then do this again if it is still wanted",
        )


@contextlib.contextmanager
def _watched(output: Output, many: int) -> Iterator[None]:
    """A bar that follows the sweep; without an end where nobody knows how much there is."""
    with output.bar("removing", many if many <= COUNTED else 0, unit="items") as bar:

        def observer(name: str, phase: str, _: float) -> None:
            if name == "rebuild.sweep":
                bar.advance(CHUNK if phase == "end" else 0)

        stop = steps.observe(observer)
        try:
            yield
        finally:
            stop()
