"""The catalog of a store: checkpoint ids, manifests, keys of their state, and `latest`, which names the newest.

`latest` is a hint for people and for LaminarDB. A save only moves it forward; Holdfast itself never depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from holdfast.base.parallel import in_parallel
from holdfast.base.steps import step
from holdfast.checkpoints import manifest_json
from holdfast.checkpoints.layout import Layout, is_batch_key
from holdfast.checkpoints.manifest import MAX_U64, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.storage.objects.store import Bytes, ObjectStore

log = logging.getLogger("holdfast.checkpoints")
T = TypeVar("T")
PARALLEL_READS = 8
MAX_POINTER_BYTES = 4096


def check_id(checkpoint_id: int) -> int:
    """Return an id that can exist, else raise `Invalid`."""
    if type(checkpoint_id) is not int or not 0 < checkpoint_id <= MAX_U64:
        raise Invalid(
            f"{checkpoint_id!r} is not a checkpoint id: they are whole numbers from 1.",
            code="checkpoint.id",
            about=f"checkpoint {checkpoint_id!r}",
            unchanged="the store",
        )
    return checkpoint_id


class Catalog:
    """The manifests of one store. Reads only."""

    def __init__(self, objects: ObjectStore, layout: Layout) -> None:
        self.objects = objects
        self.layout = layout

    def ids(self) -> list[int]:
        """Every checkpoint that has a manifest, readable or not, ascending. One listing."""
        found = (self.layout.manifest_id(info.key) for info in self.objects.list(self.layout.folders[0]))
        return sorted(number for number in found if number is not None)

    def load(self, checkpoint_id: int) -> CheckpointManifest | None:
        """One manifest, None if there is none. A damaged one is `Corrupt`."""
        key = self.layout.manifest_key(check_id(checkpoint_id))
        try:
            body = self.objects.read(key, limit=manifest_json.MAX_MANIFEST_BYTES)
        except NotFound:
            return None
        try:
            return manifest_json.decode(body, about=self.shown(key), checkpoint_id=checkpoint_id)
        except Corrupt as error:
            raise Corrupt(
                error.message,
                code=error.code,
                about=error.about,
                unchanged=error.unchanged,
                next_step=f"holdfast recover {self.objects.address} --dry-run",
            ) from None

    def load_readable(self, ids: Sequence[int]) -> list[CheckpointManifest]:
        """The manifests among `ids` that can be read, in order; damaged ones are left out with a warning."""

        def attempt(checkpoint_id: int) -> CheckpointManifest | None:
            try:
                return self.load(checkpoint_id)
            except Corrupt as error:
                log.warning("skipped a manifest that cannot be read: %s", error)
                return None

        return [manifest for manifest in read_each(attempt, ids) if manifest is not None]

    def sidecar_key(self, checkpoint_id: int, manifest: CheckpointManifest | None) -> str:
        """Where this checkpoint's sidecar is, or would be."""
        recorded = manifest.own.sidecar if manifest else None
        usual = self.layout.sidecar_key(checkpoint_id)
        return recorded.key if recorded and self.layout.sidecar_id(recorded.key) == checkpoint_id else usual

    def owned_keys(self, manifest: CheckpointManifest) -> dict[str, int | None]:
        """The keys of the sidecar and batch objects that a checkpoint needs, with their sizes (None: not recorded).

        Keys that cannot belong to this checkpoint are left out: a manifest may claim any key, and the objects that it
        owns are removed with it.
        """
        own = manifest.own
        owned: dict[str, int | None] = {
            batch.key: batch.bytes for batch in manifest.needed_batches if is_batch_key(batch.key)
        }
        if own.sidecar and self.layout.sidecar_id(own.sidecar.key) == manifest.checkpoint_id:
            owned[own.sidecar.key] = own.sidecar.bytes
        elif self.has_sidecar(manifest):
            owned[self.layout.sidecar_key(manifest.checkpoint_id)] = None  # a foreign writer's, or written on its own
        return owned

    def has_sidecar(self, manifest: CheckpointManifest) -> bool:
        """Whether an object under its sidecar key is this checkpoint's, and not left by a writer that lost the id."""
        external = any(op.external for op in manifest.operator_states.values())
        return not manifest.is_ours or manifest.own.sidecar is not None or external

    def sidecar(self, checkpoint_id: int, manifest: CheckpointManifest | None) -> Iterator[Bytes]:
        return self.objects.stream(self.sidecar_key(checkpoint_id, manifest))

    def pointer(self) -> int | None:
        """The id `latest` names; None if it is missing or unreadable. A hint only."""
        try:
            return self.layout.pointer_id(self.objects.read(self.layout.pointer_key, limit=MAX_POINTER_BYTES))
        except (NotFound, Corrupt):
            return None

    def shown(self, key: str) -> str:
        return self.objects.address.rstrip("/") + "/" + key


def advance_latest(catalog: Catalog, checkpoint_id: int) -> None:
    """Move `latest` forward to a checkpoint that is saved already, so a failure here is only worth a warning.

    It stays where it is if it names a newer checkpoint, unless that one does not exist.
    """
    try:
        with step("pointer.advance", checkpoint_id=checkpoint_id):
            ahead = _move_latest(catalog, checkpoint_id)
            if ahead and catalog.objects.info(catalog.layout.manifest_key(ahead)) is None:
                _move_latest(catalog, checkpoint_id, dangling=ahead)
    except HoldfastError as error:
        log.warning("checkpoint %d is saved, but latest still names an older one: %s", checkpoint_id, error)


def repair_latest(catalog: Catalog, checkpoint_id: int) -> bool:
    """Make `latest` name exactly this checkpoint, backwards if need be; True if it did not before."""
    body = catalog.layout.pointer_body(checkpoint_id)
    with step("pointer.repair", checkpoint_id=checkpoint_id):
        return catalog.objects.update(
            catalog.layout.pointer_key, lambda found: None if found == body else body, limit=MAX_POINTER_BYTES
        )


def _move_latest(catalog: Catalog, checkpoint_id: int, *, dangling: int | None = None) -> int | None:
    """Point `latest` at this id, unless it names a newer one; returns that newer id, else None."""
    layout = catalog.layout
    ahead: int | None = None

    def change(body: bytes | None) -> bytes | None:
        nonlocal ahead
        named = layout.pointer_id(body) if body is not None else None
        if named is None or named < checkpoint_id or named == dangling:
            ahead = None
            return layout.pointer_body(checkpoint_id)
        ahead = named if named > checkpoint_id else None
        return None

    catalog.objects.update(layout.pointer_key, change, limit=MAX_POINTER_BYTES, is_hint=True)
    return ahead


def read_each(function: Callable[[int], T], ids: Sequence[int]) -> list[T]:
    """The results of `function` for the ids, which reads something for each of them."""
    return in_parallel(function, ids, at_once=PARALLEL_READS, few=PARALLEL_READS - 1, name="read")
