"""What prune and gc share: show the plan, ask, apply it, say what went."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.base.steps import observe
from holdfast.checkpoints import CleanupPlan
from holdfast.checkpoints.cleanup import DELETE_AT_ONCE
from holdfast.cli import wording
from holdfast.cli.asking import NOT_AGREED, agreed
from holdfast.cli.output import Cell, Output, Row
from holdfast.cli.reading import Opened

SHOWN = 200


def carry_out(opened: Opened, output: Output, make_plan: Callable[[], CleanupPlan], *, dry_run: bool, yes: bool) -> int:
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
def _watched(output: Output, plan: CleanupPlan) -> Iterator[None]:
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


def _sized(opened: Opened, plan: CleanupPlan) -> CleanupPlan:
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


def _show(output: Output, plan: CleanupPlan) -> None:
    rows = list(_rows(plan))
    if rows:
        output.table(("REMOVE", "SIZE", "WHY"), rows[:SHOWN] if output.is_terminal else rows, right=(1,))
        if output.is_terminal and len(rows) > SHOWN:
            output.note(f"… and {wording.number(len(rows) - SHOWN)} more (--json lists them all)")
        output.line(f"to remove: {_total(plan)}; {wording.count(plan.kept, 'checkpoint')} will be kept")
    else:
        output.line(f"nothing to remove; {wording.count(plan.kept, 'checkpoint')} kept")


def _rows(plan: CleanupPlan) -> Iterator[Row]:
    for removal in plan.checkpoints:
        yield f"checkpoint {removal.checkpoint_id}", wording.size(removal.bytes), "older than those that are kept"
    for orphan in plan.orphans:
        yield orphan.key, wording.size(orphan.bytes), orphan.why


def _total(plan: CleanupPlan) -> str:
    what = [wording.count(len(plan.checkpoints), "checkpoint")] if plan.checkpoints else []
    what += [wording.count(len(plan.orphans), "orphan")] if plan.orphans else []
    return f"{' and '.join(what) or 'nothing'}, {wording.size(plan.bytes)}"


def _question(plan: CleanupPlan) -> str:
    return f"Remove {_total(plan)}?"


def _is_something(plan: CleanupPlan) -> bool:
    return bool(plan.checkpoints or plan.orphans)


def in_both(shown: CleanupPlan, now: CleanupPlan) -> CleanupPlan:
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


def _newest_first(plan: CleanupPlan) -> CleanupPlan:
    """Children before the ancestors they need: if this ends half-way, what is left is still whole."""
    newest_first = sorted(plan.checkpoints, key=lambda removal: removal.checkpoint_id, reverse=True)
    return msgspec.structs.replace(plan, checkpoints=newest_first)


def _as_json(plan: CleanupPlan) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(plan)
    return {"checkpoints": built["checkpoints"], "orphans": built["orphans"], "bytes": plan.bytes}
