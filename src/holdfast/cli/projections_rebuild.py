"""`holdfast projections rebuild`: make a read model anew beside the live one, and switch over."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import msgspec

from holdfast.cli import wording
from holdfast.cli.asking import NOT_AGREED, agreed
from holdfast.cli.output import Bar, Cell, Output
from holdfast.cli.projections_loading import load_projection
from holdfast.cli.projections_seen import SeenProjection, required
from holdfast.cli.projections_store import asking_first, on_projections, store_of, warn_of_fencing
from holdfast.cli.projections_words import known, lease_json, rebuild_json, worker
from holdfast.errors import Invalid
from holdfast.projections import OnError, ProjectionRunner, open_projections
from holdfast.projections.projection import ProjectionLike, check_kept

TENTHS = 10
"""How many lines a pipe gets at most, where a terminal has a bar."""


class Rebuilding(msgspec.Struct, frozen=True):
    """What would be made of what."""

    seen: SeenProjection
    version: int
    head: int
    start: int
    """The position from which a rebuild that is resumed goes on; 0: the first event."""

    @property
    def events(self) -> int:
        return max(0, self.head - self.start)

    def as_json(self, now_ms: int) -> dict[str, Any]:
        live = self.seen.standing
        return {
            "version": live.version if live else None,
            "new_version": self.version,
            "position": self.seen.position,
            "resumes_at": self.start or None,
            "events_to_read": self.events,
            "dead_letters": self.seen.dead_letters,
            "rebuild": rebuild_json(self.seen.rebuild),
            "lease": lease_json(self.seen.lease, now_ms),
        }


@click.command("rebuild")
@on_projections
@click.argument("name")
@click.option(
    "--projection",
    "given",
    required=True,
    metavar="FILE.py:CLASS",
    help="The projection; also package.module:CLASS. It is run from there, in this process.",
)
@click.option("--resume", is_flag=True, help="Go on with an unfinished rebuild of the same version.")
@click.option(
    "--put-aside", is_flag=True, help="Put events that cannot be handled aside as dead letters instead of stopping."
)
@asking_first
def command(
    url: str, output: Output, *, name: str, given: str, resume: bool, put_aside: bool, dry_run: bool, yes: bool
) -> int:
    """Make a projection's read model anew from the first event, beside the live one, and switch over in one step.

    Readers have the live one until then, and a worker goes on with it. If this is cut short, nothing is switched, and
    --resume goes on where it stood. What would be done is shown first.

    \b
    Example: holdfast projections rebuild sqlite:///data/shop.db turnover --projection turnover.py:Turnover
    """
    projection = load_projection(given, name)
    now_ms = int(time.time() * 1000)
    with open_projections(url, read_only=True) as store:
        address = store.address
        if store.is_persistent:
            check_kept(projection, address)
        plan = _planned(required(store, name), projection, store.position, resume)
    _show(output, address, plan, now_ms)
    go_ahead = agreed(output, f"Rebuild projection {name!r} of {address}?", dry_run=dry_run, yes=yes)
    result = _rebuild(url, output, projection, plan, resume, put_aside) if go_ahead else None
    found = {"address": address, "projection": name, "dry_run": dry_run, "applied": go_ahead}
    output.finish(store_of(address), found | {"plan": plan.as_json(now_ms), "result": result})
    return 0 if go_ahead or dry_run else NOT_AGREED


def _planned(seen: SeenProjection, projection: ProjectionLike, head: int, resume: bool) -> Rebuilding:
    """As the runner decides: a rebuild is resumed if it is of the same version, and for all events."""
    begun = seen.rebuild
    goes_on = resume and begun is not None and (begun.version, begun.until) == (projection.version, None)
    return Rebuilding(seen, projection.version, head, (begun.position or 0) if goes_on and begun else 0)


def _show(output: Output, address: str, plan: Rebuilding, now_ms: int) -> None:
    seen, live = plan.seen, plan.seen.standing
    of = "nothing yet" if live and live.version is None else f"version {known(live.version if live else None).text}"
    letters = f", {wording.count(seen.dead_letters, 'dead letter')}" if seen.dead_letters else ""
    output.line(
        f"live:         {of}, up to position {known(seen.position).text}{letters}; readers have it until the switch"
    )
    after = f" after position {wording.number(plan.start)}, where an unfinished rebuild stands" if plan.start else ""
    output.line(f"to make:      version {wording.number(plan.version)}")
    output.line(f"to read:      {wording.count(plan.events, 'event')}{after}")
    output.line(["works on it:  ", worker(seen, now_ms)])
    if seen.rebuild is not None and not plan.start:
        at = wording.number(seen.rebuild.position or 0)
        output.line(
            f"given up:     an unfinished rebuild of version {known(seen.rebuild.version).text}, at position {at}"
        )
    if seen.holder(now_ms) is not None and (live is None or live.version != plan.version):
        output.note(f"a worker that has another version than {plan.version} stops after the switch")
    warn_of_fencing(output, address)


def _rebuild(
    url: str, output: Output, projection: ProjectionLike, plan: Rebuilding, resume: bool, put_aside: bool
) -> dict[str, Any]:
    on_error = OnError(then="dead-letter") if put_aside else OnError()
    with open_projections(url) as store:
        try:
            with output.bar("rebuilding", plan.events, unit="items") as bar:
                follow = _Following(output, bar, plan)
                done = ProjectionRunner(store, on_error=on_error).rebuild(projection, resume=resume, progress=follow)
        except KeyboardInterrupt:
            output.note("nothing was switched: readers have the live one, and --resume goes on where this stopped")
            raise
        except Invalid as error:
            raise _stopped(error) from error
        letters = len(store.dead_letters(projection.name))
    aside = f", {wording.count(letters, 'event')} put aside" if letters else ""
    output.line(
        [
            Cell("rebuilt ", "good"),
            f"{projection.name}: {wording.count(done.handled, 'event')} handled{aside}, "
            f"version {wording.number(projection.version)} is live at position {wording.number(done.position)}",
        ]
    )
    return {"position": done.position, "handled": done.handled, "dead_letters": letters}


def _stopped(error: Invalid) -> Invalid:
    """What the runner says of a handler that failed is about catching up; here the live read model is another one."""
    if error.code != "projection.handler":
        return error
    return Invalid(
        error.message,
        code=error.code,
        about=error.about,
        unchanged="the live read model and its cursors: nothing was switched",
        next_step="correct the handler and rebuild again, or add --put-aside to go on without such events",
    )


class _Following:
    """How far a rebuild is: a bar at a terminal, some lines elsewhere."""

    def __init__(self, output: Output, bar: Bar, plan: Rebuilding) -> None:
        self._output = output
        self._bar = bar
        self._plan = plan
        self._at = plan.start
        self._tenth = 0

    def __call__(self, position: int, head: int) -> None:
        # No further than to where the bar ends: what is appended meanwhile is read as well.
        self._bar.advance(max(0, min(position, self._plan.head) - self._at))
        self._at = max(self._at, position)
        tenth = TENTHS * (position - self._plan.start) // max(1, head - self._plan.start)
        if not self._output.has_bars and self._tenth < tenth < TENTHS:
            self._tenth = tenth
            self._output.line(f"read up to position {wording.number(position)} of {wording.number(head)}")
            sys.stdout.flush()
