"""The checkpoint store: every method of the contract, one implementation for every object store and both layouts."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from holdfast.base.arguments import check_count, check_seconds
from holdfast.checkpoints.catalog import Catalog, advance_latest, check_id, repair_latest
from holdfast.checkpoints.cleanup import Cleanup, CleanupPlan
from holdfast.checkpoints.layout import Layout
from holdfast.checkpoints.lease import FOLDER, Lease, claim
from holdfast.checkpoints.manifest import MAX_U64, CheckpointManifest, SidecarObject
from holdfast.checkpoints.operator_state import check_states, plan_increment, restore_states, state_checksum
from holdfast.checkpoints.recovery_walk import RecoveryReport, walk_back
from holdfast.checkpoints.retention import check_age, check_keep, check_retained
from holdfast.checkpoints.save import (
    check_is_manifest,
    check_references,
    check_savable,
    check_well_formed,
    create_manifest,
    stamped,
    update_statuses,
    without_stamps,
)
from holdfast.checkpoints.sidecar import Sidecars, as_chunks
from holdfast.checkpoints.validate import Progress, ValidationResult, Validator
from holdfast.errors import Conflict, Corrupt, Fenced, HoldfastError, NotFound
from holdfast.storage.objects.store import Bytes, ObjectStore

log = logging.getLogger("holdfast.checkpoints")
LEASE_IS_FRESH_FOR = 1.0


class CheckpointStore:
    """Checkpoints of one pipeline.

    Guarantees: what a method acknowledged is durable; of two writers of one id exactly one wins; readers never
    see part of a checkpoint; the newest complete checkpoint is never removed.
    Not thread-safe: one handle, one thread. Any number of handles and processes may share a store.
    """

    def __init__(
        self,
        objects: ObjectStore,
        layout: Layout,
        *,
        max_retained: int | None = 3,
        keep: str | timedelta | None = None,
        vnode_count: int = 256,
        full_every: int = 10,
        orphan_grace: float = 3600.0,
        clock: Callable[[], float] = time.time,
        new_writer_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.objects = objects
        self.max_retained = check_retained(max_retained)
        self._keep = check_age(keep, self.max_retained)
        self._vnode_count = check_count("vnode_count", vnode_count, 0xFFFF)
        self._full_every = check_count("full_every", full_every, 10**6)
        self._clock = clock
        self._writer_id = new_writer_id()
        self._catalog = Catalog(objects, layout)
        grace = check_seconds("orphan_grace", orphan_grace)
        self._sidecars = Sidecars(self._catalog, self._writer_id, fresh_for=grace / 2)
        self._cleanup = Cleanup(self._catalog, self._sidecars, grace=grace, clock=clock)
        self._lease: Lease | None = None
        self._recheck_after = 0.0
        self._parent: CheckpointManifest | None = None

    def __repr__(self) -> str:
        return f"CheckpointStore({self.objects.address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Nothing to close: every method has finished when it returns."""

    @property
    def vnode_count(self) -> int:
        """How many state partitions the runtime uses; manifests are validated against it."""
        return self._vnode_count

    def claim(self, owner: str | None = None, *, recheck_after: float = 0.0) -> Lease:
        """Take the store over. From now on every durable step of this handle first checks that no later claim exists.

        A check is one listing. With `recheck_after`, one check serves all steps of that many seconds. Only for a writer
        that calls `check_lease` itself where it matters and whose ids have no gaps, as a pipeline does (see `lease`).
        """
        earlier = self._lease.record if self._lease else None
        self._lease = claim(self.objects, owner=owner, clock=self._clock, earlier=earlier)
        self._recheck_after = check_seconds("recheck_after", recheck_after)
        return self._lease

    def seconds_ahead(self) -> float:
        """How far the clock of this handle is ahead of the store's, by which objects have their ages.

        Writes an object and removes it. About right: the object takes a moment, and some stores tell whole seconds.
        """
        key = f"{FOLDER}probe-{uuid.uuid4().hex}"
        now = self._clock()
        self.objects.create(key, [b"clock"])
        try:
            found = self.objects.info(key)
        finally:
            self.objects.delete([key])
        return now - found.modified if found else 0.0

    def check_lease(self) -> None:
        """Raise `Fenced` if this handle claimed the store and another claim came since."""
        if self._lease:
            self._lease.check()

    def recheck_lease(self) -> None:
        """Check the lease before a durable step, unless the last check is recent enough; see `claim`."""
        if self._lease:
            self._lease.check(unless_within=self._recheck_after)

    def has_written(self, manifest: CheckpointManifest) -> bool:
        """Whether this very handle saved the manifest, even if another has updated it since."""
        return manifest.own.write_id == self._write_id(manifest.checkpoint_id)

    def next_id(self, *, saved_only: bool = False) -> int:
        """An id above those of all checkpoints, of all sidecars without a checkpoint, and of the pointer.

        With `saved_only`, sidecars without a manifest do not count: writers that see the same checkpoints get the same
        id, and one of them wins it, even if the other has written its sidecar already.
        """
        listed = (info.key for folder in self._catalog.layout.folders for info in self.objects.list(folder))
        layout = self._catalog.layout
        seen = [layout.manifest_id(key) or (0 if saved_only else layout.sidecar_id(key)) or 0 for key in listed]
        return min(max([*seen, self._catalog.pointer() or 0]) + 1, MAX_U64)

    def save(self, manifest: CheckpointManifest) -> None:
        """Save a checkpoint that has no sidecar, or whose sidecar `save_state_data` of this handle wrote.

        Guarantees: durable on return; if another writer saved this id before, that one stays and this call is
        `Fenced`. Saving the very same manifest again through the same handle is fine.
        """
        check_is_manifest(manifest)
        self._save_alone(without_stamps(manifest))

    def save_with_state(self, manifest: CheckpointManifest, state_data: Sequence[Bytes] | None) -> None:
        """Save a checkpoint together with its sidecar: the sidecar first, then the manifest that vouches for it.

        A crash in between leaves a sidecar that no checkpoint owns: invisible, and cleaned up later.
        """
        check_is_manifest(manifest)
        if state_data is None:
            self.save(manifest)
        else:
            self._save_with_chunks(without_stamps(manifest), as_chunks(state_data))

    def save_states(self, manifest: CheckpointManifest, states: Mapping[str, bytes]) -> CheckpointManifest:
        """Save a checkpoint of these operator states, writing only those that changed since the one before.

        Returns the manifest as it was planned: `is_incremental` and `parent_id` tell whether it builds on another.
        """
        check_is_manifest(manifest)
        check_states(states)
        if self._parent is None:
            newest = self.recover_latest_validated().chosen_id  # none usable: begin a new chain
            self._parent = self._catalog.load(newest) if newest else None
        if self._parent and not self._cleanup.is_there(self._parent.checkpoint_id):
            self._parent = None  # another process has removed it: begin a new chain
        planned = plan_increment(without_stamps(manifest), states, self._parent, full_every=self._full_every)
        if planned.chunks:
            self._save_with_chunks(planned.manifest, planned.chunks)
        else:
            self._save_alone(planned.manifest)
        self._parent = planned.manifest
        return planned.manifest

    def save_state_data(self, checkpoint_id: int, chunks: Sequence[Bytes]) -> None:
        """Write a sidecar ahead of its manifest, which `save` of the same handle will then name.

        Written twice, the last one counts. `Fenced` if the checkpoint is saved already: its state never changes.
        """
        check_id(checkpoint_id)
        self.recheck_lease()
        chunks = as_chunks(chunks)
        self._sidecars.create_ahead(checkpoint_id, chunks, state_checksum({}, chunks) or "")

    def update_manifest(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Move sink statuses (and sink epochs) of a saved checkpoint forward; nothing else may change.

        Returns the manifest as it is stored now.

        Guarantees: atomic against other updates; `latest` stays where it is. `NotFound` if it was never saved.
        """
        check_is_manifest(manifest)
        check_id(manifest.checkpoint_id)
        check_well_formed(manifest)
        self.recheck_lease()
        updated = update_statuses(self._catalog, manifest)
        self._retain(updated)
        return updated

    def prune(self, keep_count: int) -> int:
        """Remove old checkpoints so that `keep_count` complete ones stay, and orphans; returns how many went.

        Guarantees: the newest complete checkpoint and every ancestor that a kept one needs stay.
        """
        return self.apply(self.plan_prune(keep_count))

    def cleanup_orphans(self, *, older_than: float | None = None) -> int:
        """Remove objects that no checkpoint owns and no writer is writing. Returns how many were removed.

        `older_than` is in seconds, by default the store's `orphan_grace`: something younger may belong to a
        checkpoint that another process is writing. Objects that this handle wrote and never saved go at any age.
        """
        plan = self.plan_cleanup(older_than=older_than)
        self.apply(plan)
        return len(plan.orphans)

    def plan_prune(self, keep_count: int) -> CleanupPlan:
        """What `prune` would remove."""
        return self._cleanup.plan(check_keep(keep_count))

    def plan_cleanup(self, *, older_than: float | None = None) -> CleanupPlan:
        """What `cleanup_orphans` would remove."""
        return self._cleanup.plan(None, older_than=older_than)

    def apply(self, plan: CleanupPlan) -> int:
        """Carry out a plan; returns how many checkpoints it removed."""
        self.check_lease()
        return self._cleanup.apply(plan)

    def load_latest(self) -> CheckpointManifest | None:
        """The manifest with the highest id, None only if there is none. A damaged one is `Corrupt`, not passed over.

        Guarantees: the returned checkpoint is durable.
        """
        for _ in range(3):
            ids = self._catalog.ids()
            if not ids:
                return None
            manifest = self._catalog.load(ids[-1])
            if manifest is not None:  # None: pruned between listing and reading
                self._cleanup.make_durable(manifest.checkpoint_id)
                return manifest
        raise Conflict(
            "The newest checkpoint keeps disappearing.",
            about=self.objects.address,
            next_step="stop the other process that removes checkpoints from this store, then try again",
        )

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """One manifest, None if there is none. A damaged one is `Corrupt`."""
        return self._catalog.load(checkpoint_id)

    def list_ids(self) -> list[int]:
        """The id of every checkpoint that has a manifest, damaged ones too, ascending. One listing."""
        return self._catalog.ids()

    def list(self) -> list[tuple[int, int]]:
        """(id, epoch) of every readable checkpoint, ascending. Reads each manifest."""
        readable = self._catalog.load_readable(self._catalog.ids())
        return [(manifest.checkpoint_id, manifest.epoch) for manifest in readable]

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """The sidecar of one checkpoint, None if it has none. Not verified: `validate_checkpoint` does that."""
        try:
            manifest = self._catalog.load(check_id(checkpoint_id))
        except Corrupt:
            manifest = None
        if manifest is not None and not self._catalog.has_sidecar(manifest):
            return None
        unsaved = self._sidecars.unsaved.get(checkpoint_id)
        key = unsaved.key if unsaved else self._catalog.sidecar_key(checkpoint_id, manifest)
        try:
            return b"".join(self.objects.stream(key))
        except NotFound:
            return None

    def load_states(self, checkpoint_id: int) -> dict[str, bytes]:
        """Every operator's whole state as of this checkpoint, verified, its chain resolved."""
        manifest = self._catalog.load(checkpoint_id)
        if manifest is None:
            raise self._no_such(checkpoint_id)
        return restore_states(self._catalog, manifest)

    def latest_pointer(self) -> int | None:
        """The id that `latest` names, None if it is missing or unreadable. A hint: `load_latest` does not need it."""
        return self._catalog.pointer()

    def repair_pointer(self, checkpoint_id: int) -> bool:
        """Make `latest` name exactly this checkpoint, which must exist; True if it named another or none."""
        if self.load_by_id(checkpoint_id) is None:
            raise self._no_such(checkpoint_id)
        self.check_lease()
        return repair_latest(self._catalog, checkpoint_id)

    def validate_checkpoint(
        self, checkpoint_id: int, *, deep: bool = True, progress: Progress | None = None
    ) -> ValidationResult:
        """Check one checkpoint and the chain below it, by default every byte. Raises only if the object store fails."""
        return self.validator(deep=deep, progress=progress).validate(check_id(checkpoint_id))

    def validator(self, *, deep: bool = True, progress: Progress | None = None) -> Validator:
        """A validator that remembers what it has read, for many checkpoints that share ancestors."""
        return Validator(self._catalog, self._vnode_count, deep=deep, progress=progress)

    def recover_latest_validated(self, *, progress: Progress | None = None) -> RecoveryReport:
        """Walk back from the newest checkpoint to the first valid one, reading only what is tried.

        Guarantees: the chosen checkpoint and everything it needs are durable.
        """
        report = walk_back(self._catalog.ids(), self.validator(progress=progress))
        if report.chosen_id is not None:
            self._cleanup.make_durable(report.chosen_id)
        return report

    # How a save goes

    def _no_such(self, checkpoint_id: int) -> NotFound:
        return NotFound(
            f"There is no checkpoint {checkpoint_id} in {self.objects.address}.",
            code="checkpoint.not-found",
            about=f"checkpoint {checkpoint_id}",
            next_step=f"holdfast ls {self.objects.address}",
        )

    def _can_build_on(self, parent_id: int) -> bool:
        return self._cleanup.is_there(parent_id) and self._cleanup.can_build_on(parent_id)

    def _write_id(self, checkpoint_id: int) -> str:
        return f"{self._writer_id}-{checkpoint_id}"

    def _vouched(self) -> frozenset[str]:
        """Batch objects of our last checkpoint. While we hold the lease they exist, so a save need not check them."""
        return self._cleanup.newest_objects if self._lease else frozenset()

    def _save_alone(self, manifest: CheckpointManifest) -> None:
        self._check_before_save(manifest)
        sidecar = self._sidecars.written(manifest.checkpoint_id)
        checksum = manifest.state_checksum
        if checksum is None:
            pieces = self.objects.stream(sidecar.key) if sidecar else None
            checksum = state_checksum(manifest.operator_states, pieces)
        self._create(*self._stamped(manifest, sidecar, checksum))

    def _save_with_chunks(self, manifest: CheckpointManifest, chunks: Sequence[Bytes]) -> None:
        self._check_before_save(manifest)
        checksum = state_checksum(manifest.operator_states, chunks) or ""
        # Made before the sidecar is written, so that a manifest that cannot be written leaves nothing behind.
        expected = self._sidecars.expected(manifest.checkpoint_id, chunks)
        filled, body = self._stamped(manifest, expected, checksum)
        written = self._sidecars.create(manifest.checkpoint_id, chunks, checksum)
        if written.sidecar != expected:
            filled, body = self._stamped(manifest, written.sidecar, checksum)
        try:
            self._create(filled, body)
        except Fenced:
            self._sidecars.withdraw(written)
            raise

    def _check_before_save(self, manifest: CheckpointManifest) -> None:
        check_savable(manifest)
        check_references(manifest, self.objects, self._can_build_on, self._vouched())
        self.recheck_lease()

    def _stamped(
        self, manifest: CheckpointManifest, sidecar: SidecarObject | None, checksum: str | None
    ) -> tuple[CheckpointManifest, bytes]:
        return stamped(
            manifest,
            # The same for a second attempt at the same id: it finds out that the first was stored and its reply lost.
            write_id=self._write_id(manifest.checkpoint_id),
            generation=self._lease.generation if self._lease else None,
            vnode_count=self._vnode_count,
            sidecar=sidecar,
            state_checksum=checksum,
        )

    def _create(self, manifest: CheckpointManifest, body: bytes) -> None:
        if self._lease:  # writing state may have taken long, and a process may have been frozen
            self._lease.check(unless_within=LEASE_IS_FRESH_FOR)
        with self.objects.together():
            create_manifest(self._catalog, manifest.checkpoint_id, body)
            advance_latest(self._catalog, manifest.checkpoint_id)
        self._sidecars.saved(manifest.checkpoint_id)
        self._check_not_swept(manifest.checkpoint_id)
        self._retain(manifest)

    def _check_not_swept(self, checkpoint_id: int) -> None:
        """`Corrupt` if a clean-up removed the sidecar before the manifest named it. A prune would have removed both."""
        manifest_key = self._catalog.layout.manifest_key(checkpoint_id)
        if self._sidecars.is_lost(checkpoint_id) and self.objects.info(manifest_key) is not None:
            raise Corrupt(
                f"A clean-up removed the sidecar of checkpoint {checkpoint_id} while it was being saved.",
                code="sidecar.swept",
                about=self._catalog.shown(manifest_key),
                unchanged="every other checkpoint; this one is damaged, and recovery passes over it",
                next_step="save again under the next id; let clean-ups wait longer than a save takes "
                "(orphan_grace, holdfast gc --older-than)",
            )

    def _retain(self, manifest: CheckpointManifest) -> None:
        """Apply retention after a durable write. A failure here is logged: that write stays acknowledged."""
        try:
            self._cleanup.remember(manifest)
            if self.max_retained:
                self._cleanup.retain(self.max_retained, self._keep, manifest)
            else:
                self._cleanup.sweep_if_doubled(manifest)
        except HoldfastError as error:
            log.warning("old checkpoints or orphans were not removed; a later save tries again: %s", error)
