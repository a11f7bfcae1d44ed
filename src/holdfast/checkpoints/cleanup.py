"""Removing old checkpoints and orphans: observe, plan, apply.

A plan is data that can be shown before anything is removed. Applying it removes each manifest before the objects that
it names, so that a crash half-way leaves orphans, never an incomplete checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from holdfast.base.arguments import check_seconds
from holdfast.base.steps import step
from holdfast.checkpoints.catalog import Catalog, read_each
from holdfast.checkpoints.layout import BATCH
from holdfast.checkpoints.lease import FOLDER as LEASE_FOLDER
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.checkpoints.operator_state import inline_hash
from holdfast.checkpoints.retention import (
    Ancestor,
    CheckpointRefs,
    Orphan,
    find_orphans,
    has_doubled,
    is_due,
    kept_by_age,
    needed_ancestors,
    removable,
)
from holdfast.checkpoints.sidecar import Sidecars
from holdfast.checkpoints.validate import Validator
from holdfast.errors import Corrupt
from holdfast.storage.objects.store import ObjectInfo

log = logging.getLogger("holdfast.checkpoints")
DELETE_AT_ONCE = 500
PLAN_IS_FRESH_FOR = 5.0
GROUP = 8
"""By age, checkpoints are removed in groups of at least this many; of an eighth of those that stay, if that is more."""
SWEEP_EVERY = 100  # checkpoints between two automatic sweeps of orphans
SWEEP_GRACE = 600.0  # the least age of an orphan that an automatic sweep removes, even if `orphan_grace` is less


class Removal(msgspec.Struct, frozen=True):
    """One checkpoint to remove: its manifest, then everything it owns."""

    checkpoint_id: int
    manifest_key: str
    objects: tuple[str, ...]
    bytes: int


class CleanupPlan(msgspec.Struct, frozen=True):
    """What would be removed. Data only: it can be shown before it is applied."""

    checkpoints: list[Removal]
    orphans: list[Orphan]
    kept: int
    keep: int | None
    """How many complete checkpoints it keeps; None if it removes none."""
    older_than: float
    made: float
    ancestors: tuple[Ancestor, ...] = ()
    """Older checkpoints among those kept, which stay because others build on them."""

    @property
    def bytes(self) -> int:
        return sum(removal.bytes for removal in self.checkpoints) + sum(orphan.bytes for orphan in self.orphans)


class Cleanup:
    """Retention and orphan clean-up of one store.

    It caches what it has read, so that a save does not read the history again. Checkpoints that this handle saved are
    added at once, those of other writers with the next listing.
    """

    def __init__(self, catalog: Catalog, sidecars: Sidecars, *, grace: float, clock: Callable[[], float]) -> None:
        self.grace = grace
        self._catalog = catalog
        self._sidecars = sidecars
        self._clock = clock
        self._ids: set[int] | None = None
        self._newest = 0
        self._saved: tuple[int, int] = (-1, -1)
        """The last two checkpoints of this handle; -1 before there are any."""
        self._refs: dict[int, CheckpointRefs] = {}
        self._unchecked: dict[int, CheckpointRefs] = {}
        """Read from manifests, without a look at their objects: enough for all but the newest."""
        self._thin_from = 0
        self._durable: set[int] = set()
        self.newest_objects: frozenset[str] = frozenset()
        """The batch objects that the last checkpoint of this handle needs. They exist as long as it does."""

    def remember(self, manifest: CheckpointManifest) -> None:
        """Note a checkpoint that this handle has just written."""
        self._durable.add(manifest.checkpoint_id)
        if manifest.checkpoint_id != self._saved[1]:
            self._saved = self._saved[1], manifest.checkpoint_id
        self.newest_objects = frozenset(batch.key for batch in manifest.needed_batches)
        if self._ids is None:
            self._forget_all_but_chain(manifest)
        elif manifest.checkpoint_id <= self._newest + 1:
            self._ids.add(manifest.checkpoint_id)
            self._newest = max(self._newest, manifest.checkpoint_id)
        else:
            self._ids = None  # another writer may have taken an id in between: list again
        self._refs.pop(manifest.checkpoint_id, None)
        self._unchecked[manifest.checkpoint_id] = self._refs_of(manifest, is_valid=False)
        if _is_known_whole(manifest):
            self._refs[manifest.checkpoint_id] = self._refs_of(manifest, is_valid=True)

    def is_there(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint has a manifest at this moment."""
        return self._catalog.objects.info(self._catalog.layout.manifest_key(checkpoint_id)) is not None

    def can_build_on(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint and all of its ancestors are readable; if so, they are durable on return.

        Checkpoints in the cache are not read again.
        """
        ahead: int | None = checkpoint_id
        chain = []
        while ahead is not None:
            refs = self._look(ahead)
            if not refs.is_readable:
                return False
            chain.append(ahead)
            ahead = refs.parent_id if refs.parent_id is not None and 0 < refs.parent_id < ahead else None
        self._make_all_durable(chain)
        return True

    def make_durable(self, checkpoint_id: int) -> None:
        """Make a checkpoint and its ancestors durable, before a caller builds on it."""
        if not self._catalog.objects.visible_is_durable:
            self.can_build_on(checkpoint_id)

    def sweep_if_doubled(self, saved: CheckpointManifest) -> None:
        """Without retention: sweep orphans after `saved`, now and then, the rarer the more checkpoints there are."""
        before = self._saved[0] if self._saved[0] >= 0 else saved.checkpoint_id - 1
        if saved.is_settled and has_doubled(before, saved.checkpoint_id, SWEEP_EVERY):
            self._sweep()

    def retain(self, keep: int, age: float | None, saved: CheckpointManifest) -> None:
        """Apply retention after `saved` was written. Lists only on the first call, or after a gap in the ids.

        With `age`, the first call also reads every manifest. Each removal looks at all checkpoints, so they are removed
        in groups: the cost per save stays the same, however many are kept.

        Now and then it also sweeps orphans: never while a sink still owes its epoch, and so rarely that the requests
        of a sweep come to about one per save.
        """
        ids = self._ids if self._ids is not None else self._list_ids()
        is_sweep_due = saved.is_settled and is_due(saved.checkpoint_id, ids, SWEEP_EVERY)
        if age is not None and saved.is_settled and len(ids) >= self._thin_from:
            young = self._young(sorted(ids), age)
            self._remove(self._removals(removable(list(ids), self._look, keep, young=young, read=self._read)))
            self._thin_from = len(ids) + max(GROUP, len(ids) // GROUP)
        elif age is None and len(ids) > keep:
            self._remove(self._removals(removable(list(ids), self._look, keep)))
        if is_sweep_due:
            self._sweep()

    def _sweep(self) -> None:
        self._delete_orphans(self._orphans(max(self.grace, SWEEP_GRACE), abandoned=False))

    def _young(self, ids: list[int], age: float) -> set[int]:
        """The checkpoints that stay because of their age. One that cannot be read or owes a sink does not."""
        missing = [number for number in ids if number not in self._refs and number not in self._unchecked]
        read = dict(zip(missing, read_each(self._read, missing), strict=True))
        found = {number: read.get(number) or self._read(number) for number in ids}
        times = {number: refs.timestamp_ms for number, refs in found.items() if refs.is_settled}
        return kept_by_age(times, now_ms=int(self._clock() * 1000), age=age)

    def plan(self, keep: int | None, *, older_than: float | None = None) -> CleanupPlan:
        """Plan which checkpoints to remove so that `keep` complete ones stay (None: all), and which orphans."""
        age = self.grace if older_than is None else check_seconds("older_than", older_than)
        self._refs, self._unchecked = {}, {}
        ids = sorted(self._list_ids())
        doomed = removable(ids, self._look, keep) if keep else []
        removals = self._removals(doomed)
        # A prune may run between a sidecar and its save, so it leaves unsaved sidecars alone. A clean-up removes them.
        orphans = self._orphans(age, abandoned=not keep)
        claimed = {key for removal in removals for key in removal.objects}
        left = [orphan for orphan in orphans if orphan.key not in claimed]
        ancestors = tuple(needed_ancestors(ids, self._look, keep)) if keep else ()
        return CleanupPlan(removals, left, len(ids) - len(doomed), keep, age, self._clock(), ancestors)

    def apply(self, plan: CleanupPlan) -> int:
        """Remove what the plan lists; returns how many checkpoints were removed.

        A plan that is older than a few seconds is compared with a fresh one, and only what both list is removed.
        """
        if self._clock() - plan.made > PLAN_IS_FRESH_FOR:
            plan = _agreed(plan, self.plan(plan.keep, older_than=plan.older_than))
        self._remove(plan.checkpoints)
        self._delete_orphans(plan.orphans)
        return len(plan.checkpoints)

    def _delete_orphans(self, orphans: list[Orphan]) -> None:
        keys = [orphan.key for orphan in orphans]
        for start in range(0, len(keys), DELETE_AT_ONCE):
            with step("orphans.delete", objects=len(keys)):
                self._catalog.objects.delete(keys[start : start + DELETE_AT_ONCE])
        self._sidecars.removed(set(keys))

    def _remove(self, removals: list[Removal]) -> None:
        # Children before their parents, so that a crash leaves older chains whole.
        removals = sorted(removals, key=lambda removal: -removal.checkpoint_id)
        for start in range(0, len(removals), DELETE_AT_ONCE):
            group = removals[start : start + DELETE_AT_ONCE]
            with step("checkpoints.delete", checkpoints=len(group)):
                self._catalog.objects.delete(
                    [removal.manifest_key for removal in group],
                    then=[key for removal in group for key in removal.objects],
                )
            for removal in group:
                self.newest_objects -= set(removal.objects)
                (self._ids or set()).discard(removal.checkpoint_id)
                self._refs.pop(removal.checkpoint_id, None)
                self._unchecked.pop(removal.checkpoint_id, None)
                self._durable.discard(removal.checkpoint_id)

    def _list_ids(self) -> set[int]:
        self._ids = set(self._catalog.ids())
        self._newest = max(self._ids, default=0)
        self._thin_from = 0
        return self._ids

    def _removals(self, doomed: list[int]) -> list[Removal]:
        """The objects to remove with each checkpoint, except those that a kept checkpoint owns as well."""
        if not doomed:
            return []
        staying = sorted((self._ids or set()).difference(doomed))
        self._make_all_durable(staying)
        needed = {key for number in staying for key in self._read(number).objects}
        key_of = self._catalog.layout.manifest_key
        return [
            Removal(number, key_of(number), tuple(key for key in refs.objects if key not in needed), refs.bytes)
            for number, refs in zip(doomed, read_each(self._read, doomed), strict=True)
        ]

    def _look(self, checkpoint_id: int) -> CheckpointRefs:
        if checkpoint_id not in self._refs:
            self._refs[checkpoint_id] = self._observe(checkpoint_id)
        return self._refs[checkpoint_id]

    def _read(self, checkpoint_id: int) -> CheckpointRefs:
        """Like `_look`, from the manifest alone: `is_complete` may be False for a checkpoint that is complete."""
        known = self._refs.get(checkpoint_id) or self._unchecked.get(checkpoint_id)
        if known:
            return known
        try:
            manifest = self._catalog.load(checkpoint_id)
        except Corrupt:
            manifest = None
        found = self._refs_of(manifest, is_valid=False) if manifest else self._unreadable(checkpoint_id)
        if found.is_settled:  # else another writer may still change its statuses
            self._unchecked[checkpoint_id] = found
        return found

    def _unreadable(self, checkpoint_id: int) -> CheckpointRefs:
        return CheckpointRefs(False, is_readable=False, objects=(self._catalog.layout.sidecar_key(checkpoint_id),))

    def _observe(self, checkpoint_id: int) -> CheckpointRefs:
        manifest, issues = Validator(self._catalog, deep=False).look(checkpoint_id)
        if manifest is None:
            return self._unreadable(checkpoint_id)
        return self._refs_of(manifest, is_valid=not any(issue.is_fatal for issue in issues))

    def _make_all_durable(self, ids: list[int]) -> None:
        """Make checkpoints of other writers durable before anything is built on them, or removed because of them."""
        if self._catalog.objects.visible_is_durable:
            return
        unsure = [number for number in ids if number not in self._durable]
        with self._catalog.objects.together():
            for number in unsure:
                key = self._catalog.layout.manifest_key(number)
                self._catalog.objects.secure([key, *self._read(number).objects])
        self._durable.update(unsure)

    def _forget_all_but_chain(self, manifest: CheckpointManifest) -> None:
        """Cache only the chain that the next checkpoint builds on: without retention nothing else limits the cache."""
        chain = {manifest.checkpoint_id}
        ahead = manifest.needed_parent
        while ahead in self._refs and ahead not in chain:
            chain.add(ahead)
            ahead = self._refs[ahead].parent_id
        self._refs = {number: refs for number, refs in self._refs.items() if number in chain}
        self._unchecked = {number: refs for number, refs in self._unchecked.items() if number in chain}
        self._durable &= chain

    def _refs_of(self, manifest: CheckpointManifest, *, is_valid: bool) -> CheckpointRefs:
        owned = tuple(self._catalog.owned_keys(manifest))
        return CheckpointRefs(
            is_valid and manifest.is_settled,
            parent_id=manifest.needed_parent,
            objects=owned,
            bytes=manifest.size_bytes,
            is_settled=manifest.is_settled,
            timestamp_ms=manifest.timestamp_ms,
        )

    def _orphans(self, age: float, *, abandoned: bool) -> list[Orphan]:
        layout = self._catalog.layout
        # Manifests last: if a sidecar is in the listing, so is a manifest that was saved for it meanwhile.
        listing = [info for folder in reversed(layout.folders) for info in self._catalog.objects.list(folder)]
        ids = {number for info in listing if (number := layout.manifest_id(info.key)) is not None}
        manifests = self._manifests(sorted(ids))
        owned = {key for manifest in manifests.values() if manifest for key in self._catalog.owned_keys(manifest)}
        prefixes = {match["prefix"] for key in owned if (match := BATCH.fullmatch(key))} - {""}
        elsewhere = [f"{prefix}checkpoints/" for prefix in sorted(prefixes)]
        for folder in elsewhere:
            listing += self._catalog.objects.list(folder)
        return find_orphans(
            listing,
            self._leftovers((*layout.folders, LEASE_FOLDER, *elsewhere)),
            manifests,
            owned,
            layout,
            written_before=self._clock() - age,
            abandoned={sidecar.key for sidecar in self._sidecars.unsaved.values()} if abandoned else (),
        )

    def _leftovers(self, folders: tuple[str, ...]) -> list[ObjectInfo]:
        """Temporary files, and empty folders with a checkpoint's name; other empty folders are not ours."""
        layout = self._catalog.layout
        found = [info for folder in folders for info in self._catalog.objects.leftovers(folder)]
        return [info for info in found if info.key[-1] != "/" or layout.manifest_id(f"{info.key}manifest.json")]

    def _manifests(self, ids: list[int]) -> dict[int, CheckpointManifest | None]:
        """Manifests by id; None where one is damaged, in which case nothing it may own is touched."""

        def attempt(checkpoint_id: int) -> CheckpointManifest | None:
            try:
                return self._catalog.load(checkpoint_id)
            except Corrupt as error:
                log.warning("the objects it owns are kept: %s", error)
                return None

        return dict(zip(ids, read_each(attempt, ids), strict=True))


def _is_known_whole(manifest: CheckpointManifest) -> bool:
    """Whether a manifest that we just saved needs no check: the same save wrote every object that it refers to."""
    ends = [op.external_offset + op.external_length for op in manifest.operator_states.values() if op.external]
    sidecar = manifest.own.sidecar
    if sidecar is None:
        return not ends and manifest.state_checksum == inline_hash(manifest.operator_states)
    return max(ends, default=0) <= sidecar.bytes


def _agreed(plan: CleanupPlan, fresh: CleanupPlan) -> CleanupPlan:
    doomed = {removal.checkpoint_id for removal in plan.checkpoints}
    orphans = {orphan.key for orphan in plan.orphans}
    return msgspec.structs.replace(
        fresh,
        checkpoints=[removal for removal in fresh.checkpoints if removal.checkpoint_id in doomed],
        orphans=[orphan for orphan in fresh.orphans if orphan.key in orphans],
    )
