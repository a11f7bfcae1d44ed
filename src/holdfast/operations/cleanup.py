"""Removing old checkpoints (`prune`) and what no checkpoint owns (`gc`), as plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from holdfast.checkpoints import CleanupPlan
from holdfast.checkpoints.cleanup import DELETE_AT_ONCE
from holdfast.operations.plan import Outcome, Progress, Table, progress_of_steps
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore, without_warnings


class RemovalPlan(msgspec.Struct, frozen=True):
    """Checkpoints and orphans that would be removed.

    `apply` removes only what was shown and is still removable: some of it may be needed by now. A crash half-way leaves
    orphans, never an incomplete checkpoint.
    """

    opened: OpenedStore
    cleaning: CleanupPlan
    make_again: Callable[[], CleanupPlan]

    activity: ClassVar[str] = "removing"
    warnings: ClassVar[Sequence[str]] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.cleaning.checkpoints or self.cleaning.orphans)

    @property
    def question(self) -> str:
        return f"Remove {_total(self.cleaning)}?"

    @property
    def amount(self) -> int:
        return len(self.cleaning.checkpoints) + len(self.cleaning.orphans)

    @property
    def kept(self) -> int:
        """How many checkpoints stay."""
        return self.cleaning.kept

    def lines(self) -> Iterator[str | Table]:
        kept = format.count(self.kept, "checkpoint")
        if self.is_empty:
            yield f"nothing to remove; {kept} kept"
            return
        yield Table(("REMOVE", "SIZE", "WHY"), list(_rows(self.cleaning)), right=(1,))
        yield f"to remove: {_total(self.cleaning)}; {kept} will be kept"

    def as_json(self) -> dict[str, Any]:
        return _as_json(self.cleaning)

    def apply(self, progress: Progress | None = None) -> Outcome:
        with without_warnings():  # they came when it was planned first
            now = self.make_again()
        removed = newest_first(in_both(self.cleaning, now))
        with progress_of_steps(("checkpoints.delete", "orphans.delete"), DELETE_AT_ONCE, self.amount, progress):
            self.opened.store.apply(removed)
        return Outcome([f"removed {_total(removed)}"], result=_as_json(removed))


def plan_prune(opened: OpenedStore, keep: int) -> RemovalPlan:
    """All but the newest `keep` complete checkpoints and what they need; with them, what no checkpoint owns."""
    return _plan(opened, lambda: opened.store.plan_prune(keep))


def plan_gc(opened: OpenedStore, older_than: float) -> RemovalPlan:
    """Objects that no checkpoint owns, except those younger than this many seconds."""
    return _plan(opened, lambda: opened.store.plan_cleanup(older_than=older_than))


def _plan(opened: OpenedStore, make: Callable[[], CleanupPlan]) -> RemovalPlan:
    return RemovalPlan(opened, _sized(opened, make()), make)


def _sized(opened: OpenedStore, plan: CleanupPlan) -> CleanupPlan:
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


def newest_first(plan: CleanupPlan) -> CleanupPlan:
    """Children before the ancestors they need: if this ends half-way, what is left is still whole. Pure."""
    checkpoints = sorted(plan.checkpoints, key=lambda removal: removal.checkpoint_id, reverse=True)
    return msgspec.structs.replace(plan, checkpoints=checkpoints)


def _rows(plan: CleanupPlan) -> Iterator[tuple[str, str, str]]:
    for removal in plan.checkpoints:
        yield f"checkpoint {removal.checkpoint_id}", format.size(removal.bytes), "older than those that are kept"
    for orphan in plan.orphans:
        yield orphan.key, format.size(orphan.bytes), orphan.why


def _total(plan: CleanupPlan) -> str:
    what = [format.count(len(plan.checkpoints), "checkpoint")] if plan.checkpoints else []
    what += [format.count(len(plan.orphans), "orphan")] if plan.orphans else []
    return f"{' and '.join(what) or 'nothing'}, {format.size(plan.bytes)}"


def _as_json(plan: CleanupPlan) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(plan)
    return {"checkpoints": built["checkpoints"], "orphans": built["orphans"], "bytes": plan.bytes}
