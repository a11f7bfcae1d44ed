"""How a checkpoint is saved: checked, stamped with what only the store knows, then created, once and by one writer."""

from __future__ import annotations

from collections.abc import Callable, Set

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints import manifest_json
from holdfast.checkpoints.catalog import Catalog, check_id
from holdfast.checkpoints.layout import is_batch_key
from holdfast.checkpoints.manifest import CheckpointManifest, SidecarObject
from holdfast.errors import Conflict, Corrupt, Fenced, Invalid, NotFound
from holdfast.storage.objects.store import ObjectStore


def check_savable(manifest: CheckpointManifest) -> None:
    """Raise `Invalid` for a manifest that could never be recovered from."""
    check_id(manifest.checkpoint_id)
    problems = [issue.message for issue in manifest.validate() if issue.is_fatal]
    if manifest.is_incremental and manifest.parent_id is None:
        problems.append("is_incremental without a parent_id")
    if problems:
        raise Invalid(
            f"Checkpoint {manifest.checkpoint_id} cannot be saved: {'; '.join(problems)}.",
            code="manifest.invalid",
            about=f"checkpoint {manifest.checkpoint_id}",
            unchanged="the store",
        )


def check_references(
    manifest: CheckpointManifest, objects: ObjectStore, can_build_on: Callable[[int], bool], known: Set[str]
) -> None:
    """Raise `Invalid` for a manifest that needs a batch object or a parent which is not there.

    `known`: batch objects that need no look, because a checkpoint that is kept needs them as well.
    """
    for batch in manifest.needed_batches:
        if batch.key in known:
            continue
        info = objects.info(batch.key) if is_batch_key(batch.key) else None
        if info is None or info.size != batch.bytes:
            raise _missing(manifest, f"lists batch object {batch.key!r}", objects, "flush it again, then save")
    parent = manifest.needed_parent
    if parent is not None and not can_build_on(parent):
        raise _missing(manifest, f"names parent {parent}", objects, "save a full checkpoint instead")


def _missing(manifest: CheckpointManifest, what: str, objects: ObjectStore, next_step: str) -> Invalid:
    return Invalid(
        f"Checkpoint {manifest.checkpoint_id} {what}, which {objects.address} does not have, or not whole.",
        code="manifest.reference",
        about=f"checkpoint {manifest.checkpoint_id}",
        unchanged="the store",
        next_step=next_step,
    )


def without_stamps(manifest: CheckpointManifest) -> CheckpointManifest:
    """The manifest without what a store filled in when it saved the one that this was derived from.

    Those stamps speak of the other checkpoint's state; the batch objects it lists stay, for they may be meant.
    """
    if not manifest.is_ours:
        return manifest
    own = msgspec.structs.replace(
        manifest.own, write_id="", generation=0, sidecar=None, states={}, chain_length=0, checksum=""
    )
    return msgspec.structs.replace(manifest, holdfast=own, state_checksum=None)


def stamped(
    manifest: CheckpointManifest,
    *,
    write_id: str,
    generation: int | None,
    vnode_count: int,
    sidecar: SidecarObject | None,
    state_checksum: str | None,
) -> tuple[CheckpointManifest, bytes]:
    """The manifest with everything filled in, and its document. Pure."""
    own = msgspec.structs.replace(
        manifest.own,
        write_id=write_id,
        generation=manifest.own.generation if generation is None else generation,
        sidecar=sidecar,
    )
    filled = msgspec.structs.replace(
        manifest,
        holdfast=own,
        size_bytes=0,
        vnode_count=manifest.vnode_count or vnode_count,
        state_checksum=state_checksum,
    )
    others = (sidecar.bytes if sidecar else 0) + sum(batch.bytes for batch in own.batches)
    rest = len(manifest_json.encode(filled)) + others - len("0")
    total = rest
    while total != rest + len(str(total)):  # the size counts its own digits
        total = rest + len(str(total))
    filled = msgspec.structs.replace(filled, size_bytes=total)
    return filled, manifest_json.encode(filled)


def create_manifest(catalog: Catalog, checkpoint_id: int, body: bytes) -> None:
    """The commit point: create the manifest, or find that it is there already as we would have written it."""
    key = catalog.layout.manifest_key(checkpoint_id)
    with step("manifest.create", checkpoint_id=checkpoint_id):
        try:
            catalog.objects.create(key, [body])
            return
        except Conflict:
            if _holds(catalog, key, body):
                return
    raise Fenced(
        f"Checkpoint {checkpoint_id} has been saved already, by another writer or with other content.",
        code="checkpoint.taken",
        about=catalog.shown(key),
        unchanged="the other writer's checkpoint and its state",
        next_step="stop this writer; if it is the only one, load the newest checkpoint and go on after it",
    )


def _holds(catalog: Catalog, key: str, body: bytes) -> bool:
    try:
        return catalog.objects.read(key, limit=manifest_json.MAX_MANIFEST_BYTES) == body
    except (NotFound, Corrupt):
        return False
