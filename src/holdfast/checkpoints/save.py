"""Saving a checkpoint: check it, stamp it, create it once; and the rules for later updates."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import msgspec

from holdfast.base.arguments import refused, type_name
from holdfast.base.steps import step
from holdfast.checkpoints import manifest_json
from holdfast.checkpoints.catalog import Catalog, check_id
from holdfast.checkpoints.layout import is_batch_key
from holdfast.checkpoints.manifest import CheckpointManifest, SidecarObject, SinkFailed, SinkStatus
from holdfast.errors import Conflict, Corrupt, Fenced, Invalid, NotFound
from holdfast.storage.objects.store import ObjectStore

MOVABLE = ("sink_commit_statuses", "sink_epochs")
"""The only fields that an update may change."""


def check_is_manifest(manifest: Any) -> None:
    """Refuse anything but a manifest, such as the None of a checkpoint that is not there."""
    if not isinstance(manifest, CheckpointManifest):
        raise refused("manifest", f"a CheckpointManifest is needed, not {type_name(manifest)}")


def check_well_formed(manifest: CheckpointManifest) -> None:
    """Refuse a manifest with an invalid field value, such as an unknown status."""
    problems = _fatal_problems(manifest)
    if problems:
        raise refused("manifest", "; ".join(problems))


def check_savable(manifest: CheckpointManifest) -> None:
    """Raise `Invalid` for a manifest that could never be recovered from."""
    check_id(manifest.checkpoint_id)
    problems = _fatal_problems(manifest)
    if manifest.is_incremental and manifest.parent_id is None:
        problems.append("is_incremental without a parent_id")
    if problems:
        raise Invalid(
            f"Checkpoint {manifest.checkpoint_id} cannot be saved: {'; '.join(problems)}.",
            code="manifest.invalid",
            about=f"checkpoint {manifest.checkpoint_id}",
            unchanged="the store",
        )


def _fatal_problems(manifest: CheckpointManifest) -> list[str]:
    """The fatal findings of `validate`, without encoding the manifest: that is done once, when it is written."""
    issues = manifest.type_issues() or manifest.content_issues()
    return [issue.message for issue in issues if issue.is_fatal]


def check_references(
    manifest: CheckpointManifest, objects: ObjectStore, can_build_on: Callable[[int], bool], known: Set[str]
) -> None:
    """Raise `Invalid` for a manifest that needs a batch object or a parent which the store does not have.

    `known` are batch objects that need no check, because a checkpoint that is kept needs them as well.
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
    """The manifest without the fields that a store fills in when it saves.

    A manifest derived from a saved one still has them, and they describe the state of that other checkpoint. Batch
    objects stay listed: the caller may mean to keep them.
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
    """The manifest with the fields that the store fills in, and its document. Pure."""
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
    body = manifest_json.encode(filled, others=others)
    return msgspec.structs.replace(filled, size_bytes=len(body) + others), body


def create_manifest(catalog: Catalog, checkpoint_id: int, body: bytes) -> None:
    """The commit point: create the manifest. Also succeeds if it is stored already with exactly this content."""
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


def update_statuses(catalog: Catalog, manifest: CheckpointManifest) -> CheckpointManifest:
    """Move sink statuses and epochs of the stored manifest forward to those of this one; returns what is stored then.

    `NotFound` if it was never saved.
    """
    checkpoint_id = manifest.checkpoint_id
    key = catalog.layout.manifest_key(checkpoint_id)
    about = catalog.shown(key)
    updated: list[CheckpointManifest] = []

    def change(body: bytes | None) -> bytes | None:
        if body is None:
            return None
        stored = manifest_json.decode(body, about=about, checkpoint_id=checkpoint_id)
        updated[:] = [merge_statuses(stored, manifest, about=about)]
        return manifest_json.encode(updated[0])

    with step("manifest.update", checkpoint_id=checkpoint_id):
        if not catalog.objects.update(key, change, limit=manifest_json.MAX_MANIFEST_BYTES):
            raise NotFound(
                f"Checkpoint {checkpoint_id} was never saved, so it cannot be updated.",
                code="checkpoint.not-found",
                about=about,
                unchanged="the store",
                next_step="save it first",
            )
    return updated[0]


def merge_statuses(stored: CheckpointManifest, wanted: CheckpointManifest, *, about: str) -> CheckpointManifest:
    """`stored` with the sink statuses and epochs of `wanted`; `Invalid` if that is not a step forward.

    Forward is: unset, Pending, Failed, Committed. `wanted` may be the manifest as it was passed to `save`,
    without the fields that the store filled in.
    """
    wanted = _with_stamps_of(stored, wanted)
    fields = (field for field in stored.__struct_fields__ if field not in MOVABLE)
    changed = [field for field in fields if getattr(stored, field) != getattr(wanted, field)]
    if changed:
        raise _update_refused(about, f"only sink statuses may change after a save, not {', '.join(changed)}")
    for sink, status in stored.sink_commit_statuses.items():
        if _rank(wanted.sink_commit_statuses.get(sink)) < _rank(status):
            raise _update_refused(
                about,
                f"sink {sink!r} is {shown(status)} and cannot go back to "
                f"{shown(wanted.sink_commit_statuses.get(sink))}",
            )
    for sink, epoch in stored.sink_epochs.items():
        if wanted.sink_epochs.get(sink, -1) < epoch:
            raise _update_refused(about, f"sink {sink!r} is at epoch {epoch} and cannot go back")
    return msgspec.structs.replace(
        stored, sink_commit_statuses=wanted.sink_commit_statuses, sink_epochs=wanted.sink_epochs
    )


def shown(status: SinkStatus | None) -> str:
    """A status in a word or two."""
    if isinstance(status, SinkFailed):
        return f"Failed ({status.reason})"
    return status or "unset"


def _rank(status: SinkStatus | None) -> int:
    if status is None:
        return 0
    return 2 if isinstance(status, SinkFailed) else {"Pending": 1, "Committed": 3}[status]


def _with_stamps_of(stored: CheckpointManifest, wanted: CheckpointManifest) -> CheckpointManifest:
    """`wanted` with the fields that the store filled in when it saved, where the caller has not set them."""
    stamped = stored.own
    own = msgspec.structs.replace(wanted.own, checksum=stamped.checksum)  # changes with the statuses, which it covers
    if not own.write_id:
        own = msgspec.structs.replace(
            own, write_id=stamped.write_id, generation=stamped.generation, sidecar=stamped.sidecar
        )
    return msgspec.structs.replace(
        wanted,
        holdfast=stored.holdfast if own == stored.own else own,
        size_bytes=wanted.size_bytes or stored.size_bytes,
        state_checksum=wanted.state_checksum or stored.state_checksum,
        vnode_count=wanted.vnode_count or stored.vnode_count,
        unknown=stored.unknown if wanted.unknown is msgspec.UNSET else wanted.unknown,
    )


def _update_refused(about: str, why: str) -> Invalid:
    return Invalid(
        f"{about} was not updated: {why}.",
        code="manifest.update-refused",
        about=about,
        unchanged="the stored manifest",
        next_step="load it again and change sink statuses from there",
    )
