"""Plans that remove old checkpoints (`prune`) and objects that no checkpoint owns (`gc`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from holdfast.base.addresses import is_local
from holdfast.checkpoints import CleanupPlan
from holdfast.checkpoints.cleanup import DELETE_AT_ONCE
from holdfast.errors import Invalid
from holdfast.operations.plan import Outcome, Progress, Table, progress_of_steps
from holdfast.status import format
from holdfast.status.checkpoints import OpenedStore, without_warnings


class RemovalPlan(msgspec.Struct, frozen=True):
    """A plan to remove checkpoints and orphans.

    `apply` plans again and removes only what both plans list: a checkpoint of the first one may be needed by now. A
    crash half-way leaves orphans, never an incomplete checkpoint.
    """

    opened: OpenedStore
    shown: CleanupPlan
    plan_again: Callable[[], CleanupPlan]

    activity: ClassVar[str] = "removing"
    warnings: ClassVar[Sequence[str]] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.shown.checkpoints or self.shown.orphans)

    @property
    def question(self) -> str:
        return f"Remove {_total(self.shown)}?"

    @property
    def amount(self) -> int:
        return len(self.shown.checkpoints) + len(self.shown.orphans)

    @property
    def kept(self) -> int:
        """The number of checkpoints that stay."""
        return self.shown.kept

    def lines(self) -> Iterator[str | Table]:
        kept = format.count(self.kept, "checkpoint")
        if self.is_empty:
            yield f"nothing to remove; {kept} kept"
        else:
            yield Table(("REMOVE", "SIZE", "WHY"), list(_rows(self.shown)), right=(1,))
            yield f"to remove: {_total(self.shown)}; {kept} will be kept"
        yield from _reasons_to_stay(self.shown)

    def as_json(self) -> dict[str, Any]:
        return _as_json(self.shown) | {"ancestors": msgspec.to_builtins(self.shown.ancestors)}

    def apply(self, progress: Progress | None = None) -> Outcome:
        _check_clock(self.opened, self.shown)
        with without_warnings():  # the first plan has logged them
            now = self.plan_again()
        removed = newest_first(in_both(self.shown, now))
        with progress_of_steps(("checkpoints.delete", "orphans.delete"), DELETE_AT_ONCE, self.amount, progress):
            self.opened.store.apply(removed)
        return Outcome([f"removed {_total(removed)}"], result=_as_json(removed))


def _check_clock(opened: OpenedStore, plan: CleanupPlan) -> None:
    """Refuse to remove orphans that look old only because this machine's clock is ahead of the store's."""
    if not plan.orphans or not plan.older_than or is_local(opened.address):
        return
    ahead = opened.store.seconds_ahead()
    if ahead > plan.older_than / 2:
        raise Invalid(
            f"This machine's clock is {format.span(int(ahead * 1000))} ahead of that of {opened.address}: what "
            "is being written there now looks abandoned.",
            code="cleanup.clock",
            about=opened.address,
            unchanged="the store",
            next_step="set this machine's clock, and run it again",
        )


def plan_prune(opened: OpenedStore, keep: int) -> RemovalPlan:
    """Remove all but the newest `keep` complete checkpoints and their ancestors, and the objects no checkpoint owns."""
    return _plan(opened, lambda: opened.store.plan_prune(keep))


def plan_gc(opened: OpenedStore, older_than: float) -> RemovalPlan:
    """Remove the objects that no checkpoint owns and that are older than this many seconds."""
    return _plan(opened, lambda: opened.store.plan_cleanup(older_than=older_than))


def _plan(opened: OpenedStore, make: Callable[[], CleanupPlan]) -> RemovalPlan:
    return RemovalPlan(opened, _sized(opened, make()), make)


def _sized(opened: OpenedStore, plan: CleanupPlan) -> CleanupPlan:
    """The plan with measured sizes: a damaged or foreign manifest does not record them."""
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
    """The checkpoints and orphans that both plans list. Pure."""
    checkpoints = {removal.checkpoint_id: removal for removal in now.checkpoints}
    orphans = {orphan.key for orphan in now.orphans}
    return msgspec.structs.replace(
        now,
        # The objects of the new plan, since a checkpoint may have lost or gained some; the size as shown.
        checkpoints=[
            msgspec.structs.replace(checkpoints[removal.checkpoint_id], bytes=removal.bytes)
            for removal in shown.checkpoints
            if removal.checkpoint_id in checkpoints
        ],
        orphans=[orphan for orphan in shown.orphans if orphan.key in orphans],
    )


def newest_first(plan: CleanupPlan) -> CleanupPlan:
    """Order children before the ancestors they need: after a crash half-way, the rest is still valid. Pure."""
    checkpoints = sorted(plan.checkpoints, key=lambda removal: removal.checkpoint_id, reverse=True)
    return msgspec.structs.replace(plan, checkpoints=checkpoints)


def _rows(plan: CleanupPlan) -> Iterator[tuple[str, str, str]]:
    for removal in plan.checkpoints:
        yield f"checkpoint {removal.checkpoint_id}", format.size(removal.bytes), "older than those that are kept"
    for orphan in plan.orphans:
        yield orphan.key, format.size(orphan.bytes), orphan.why


def _reasons_to_stay(plan: CleanupPlan) -> Iterator[str]:
    """A line for each group of older checkpoints that stay for the same reason."""
    groups: dict[tuple[bool, tuple[int, ...]], list[int]] = {}
    for ancestor in plan.ancestors:
        groups.setdefault((ancestor.is_certain, ancestor.needed_by), []).append(ancestor.checkpoint_id)
    for (is_certain, needed_by), ids in groups.items():
        stay = f"{format.count(len(ids), 'older checkpoint')} ({format.listed(ids)})"
        if is_certain:
            verb = "builds" if len(needed_by) == 1 else "build"
            why = f"{_checkpoints(needed_by)} {verb} on {'it' if len(ids) == 1 else 'them'}"
        else:
            why = f"{_checkpoints(needed_by)} is damaged and may build on {'it' if len(ids) == 1 else 'them'}"
        yield f"among them: {stay}, because {why}"


def _checkpoints(ids: Sequence[int]) -> str:
    return f"checkpoint{'' if len(ids) == 1 else 's'} {format.listed(ids)}"


def _total(plan: CleanupPlan) -> str:
    what = [format.count(len(plan.checkpoints), "checkpoint")] if plan.checkpoints else []
    what += [format.count(len(plan.orphans), "orphan")] if plan.orphans else []
    return f"{' and '.join(what) or 'nothing'}, {format.size(plan.bytes)}"


def _as_json(plan: CleanupPlan) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(plan)
    return {"checkpoints": built["checkpoints"], "orphans": built["orphans"], "bytes": plan.bytes}
