"""What prune and gc share: show the plan, ask, apply it, say what went."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.base.steps import observe
from holdfast.checkpoints import CleaningPlan
from holdfast.checkpoints.cleanup import DELETE_AT_ONCE
from holdfast.cli.confirm import NOT_AGREED, agreed
from holdfast.cli.output import Cell, Output, Row
from holdfast.status import format
from holdfast.status.checkpoints import Opened

SHOWN = 200


def carry_out(
    opened: Opened, output: Output, make_plan: Callable[[], CleaningPlan], *, dry_run: bool, yes: bool
) -> int:
    """Show what would be removed, and remove it if that is agreed to.

    Guarantees: only what was shown goes. If a person took time to answer, the plan is made again and only what is
    in both goes: something may have become needed meanwhile. A crash half-way leaves orphans, never a hole.
    """
    plan = _sized(opened, make_plan())
    _show(output, plan)
    go_ahead = _is_something(plan) and agreed(output, _question(plan), dry_run=dry_run, yes=yes)
    removed = msgspec.structs.replace(plan, checkpoints=[], orphans=[])
    if go_ahead:
        removed = _newest_first(plan if yes else in_both(plan, make_plan()))
        with _watched(output, removed):
            opened.store.apply(removed)
        output.line(Cell(f"removed {_total(removed)}", "good"))
    data = {"dry_run": dry_run, "applied": go_ahead, "kept": plan.kept, "plan": _as_json(plan)}
    output.finish(opened.address, data | {"removed": _as_json(removed)})
    return NOT_AGREED if _is_something(plan) and not go_ahead and not dry_run else 0


@contextlib.contextmanager
def _watched(output: Output, plan: CleaningPlan) -> Iterator[None]:
    """A bar that follows the store's own steps; each removes up to so many items."""
    with output.bar("removing", len(plan.checkpoints) + len(plan.orphans), unit="items") as bar:

        def observer(name: str, phase: str, _: float) -> None:
            if name in ("checkpoints.delete", "orphans.delete"):
                bar.advance(DELETE_AT_ONCE if phase == "end" else 0)

        stop = observe(observer)
        try:
            yield
        finally:
            stop()


def _sized(opened: Opened, plan: CleaningPlan) -> CleaningPlan:
    """The plan with the bytes that are really there: a damaged or foreign manifest does not tell."""
    if not plan.checkpoints:
        return plan
    objects = opened.store.objects
    sizes = {info.key: info.size for folder in opened.catalog.layout.folders for info in objects.list(folder)}

    def measured(key: str) -> int:
        if key in sizes:
            return sizes[key]
        info = objects.info(key)
        return info.size if info else 0

    return msgspec.structs.replace(
        plan,
        checkpoints=[
            msgspec.structs.replace(
                removal, bytes=sum(measured(key) for key in {removal.manifest_key, *removal.objects})
            )
            for removal in plan.checkpoints
        ],
    )


def _show(output: Output, plan: CleaningPlan) -> None:
    rows = list(_rows(plan))
    if rows:
        output.table(("REMOVE", "SIZE", "WHY"), rows[:SHOWN] if output.is_terminal else rows, right=(1,))
        if output.is_terminal and len(rows) > SHOWN:
            output.note(f"… and {format.number(len(rows) - SHOWN)} more (--json lists them all)")
        output.line(f"to remove: {_total(plan)}; {format.count(plan.kept, 'checkpoint')} will be kept")
    else:
        output.line(f"nothing to remove; {format.count(plan.kept, 'checkpoint')} kept")


def _rows(plan: CleaningPlan) -> Iterator[Row]:
    for removal in plan.checkpoints:
        yield f"checkpoint {removal.checkpoint_id}", format.size(removal.bytes), "older than those that are kept"
    for orphan in plan.orphans:
        yield orphan.key, format.size(orphan.bytes), orphan.why


def _total(plan: CleaningPlan) -> str:
    what = [format.count(len(plan.checkpoints), "checkpoint")] if plan.checkpoints else []
    what += [format.count(len(plan.orphans), "orphan")] if plan.orphans else []
    return f"{' and '.join(what) or 'nothing'}, {format.size(plan.bytes)}"


def _question(plan: CleaningPlan) -> str:
    return f"Remove {_total(plan)}?"


def _is_something(plan: CleaningPlan) -> bool:
    return bool(plan.checkpoints or plan.orphans)


def in_both(shown: CleaningPlan, now: CleaningPlan) -> CleaningPlan:
    """What was shown and is still to go. Pure."""
    checkpoints = {removal.checkpoint_id: removal for removal in now.checkpoints}
    orphans = {orphan.key for orphan in now.orphans}
    return msgspec.structs.replace(
        now,
        # As planned now, so that a part it has lost or gained since is known; sized as shown.
        checkpoints=[
            msgspec.structs.replace(checkpoints[removal.checkpoint_id], bytes=removal.bytes)
            for removal in shown.checkpoints
            if removal.checkpoint_id in checkpoints
        ],
        orphans=[orphan for orphan in shown.orphans if orphan.key in orphans],
    )


def _newest_first(plan: CleaningPlan) -> CleaningPlan:
    """Children before the ancestors they need: if this ends half-way, what is left is still whole."""
    newest_first = sorted(plan.checkpoints, key=lambda removal: removal.checkpoint_id, reverse=True)
    return msgspec.structs.replace(plan, checkpoints=newest_first)


def _as_json(plan: CleaningPlan) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(plan)
    return {"checkpoints": built["checkpoints"], "orphans": built["orphans"], "bytes": plan.bytes}
