"""Which checkpoints may be removed, and which objects belong to none. Pure decisions over what is there.

Only names that Holdfast or LaminarDB give are ever taken for orphans, so a stranger's file is never touched. A young
object may belong to a checkpoint that is being written right now, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.base.arguments import check_count
from holdfast.checkpoints.layout import BATCH, Layout
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Invalid
from holdfast.storage.objects.store import ObjectInfo


class CheckpointRefs(msgspec.Struct, frozen=True):
    """The facts about one checkpoint that retention depends on."""

    is_complete: bool
    """Nothing fatal about it, every sink committed, all of its own objects there."""
    is_readable: bool = True
    parent_id: int | None = None
    objects: tuple[str, ...] = ()
    """Sidecar and batch objects, removed after the manifest."""
    bytes: int = 0


def check_retained(max_retained: int | None) -> int | None:
    """How many complete checkpoints to keep; None and 0 mean all."""
    if max_retained is None or max_retained == 0:
        return None
    return check_count("max_retained", max_retained)


def check_keep(keep: int) -> int:
    """Return a number of checkpoints that may be kept, else raise `Invalid`."""
    if type(keep) is not int or keep < 1:
        raise Invalid(
            f"Cannot keep {keep!r} checkpoints: the newest complete one always stays, so the least is 1.",
            code="prune.count",
            about="prune",
            unchanged="the store",
        )
    return keep


def removable(ids: Sequence[int], look: Callable[[int], CheckpointRefs], keep: int) -> list[int]:
    """The ids that can go so that `keep` complete checkpoints stay, ascending.

    Guarantees: the `keep` newest complete ones stay, so does everything newer than them, and so does every
    ancestor that something kept needs. `look` is asked only about what is kept.
    """
    newest_first = sorted(ids, reverse=True)
    there = set(newest_first)
    kept: list[int] = []
    complete = 0
    for checkpoint_id in newest_first:
        kept.append(checkpoint_id)
        complete += _chain_is_complete(checkpoint_id, there, look)
        if complete == keep:
            break
    if complete < keep:
        return []
    ancestors, unknown_below = _ancestors(kept, there, look)
    oldest = kept[-1]
    return sorted(n for n in newest_first if unknown_below < n < oldest and n not in ancestors)


def _chain_is_complete(checkpoint_id: int, there: set[int], look: Callable[[int], CheckpointRefs]) -> bool:
    while True:
        refs = look(checkpoint_id)
        if not refs.is_complete:
            return False
        if refs.parent_id is None:
            return True
        if refs.parent_id not in there or refs.parent_id >= checkpoint_id:
            return False
        checkpoint_id = refs.parent_id


def _ancestors(kept: list[int], there: set[int], look: Callable[[int], CheckpointRefs]) -> tuple[set[int], int]:
    """Every ancestor of what is kept, and the id below which ancestry is unknown (0: nowhere).

    An ancestor whose manifest is damaged hides its own parents, so nothing below it is removed.
    """
    found: set[int] = set()
    unknown_below = 0
    for checkpoint_id in kept:
        parent = look(checkpoint_id).parent_id
        while parent is not None and parent in there and parent < checkpoint_id and parent not in found:
            found.add(parent)
            refs = look(parent)
            if not refs.is_readable:
                unknown_below = max(unknown_below, parent)
            checkpoint_id, parent = parent, refs.parent_id
    return found, unknown_below


class Orphan(msgspec.Struct, frozen=True):
    """An object to remove, and why it is not needed."""

    key: str
    bytes: int
    why: str


def find_orphans(
    listing: Iterable[ObjectInfo],
    leftovers: Iterable[ObjectInfo],
    manifests: Mapping[int, CheckpointManifest | None],
    owned: Collection[str],
    layout: Layout,
    *,
    written_before: float,
    abandoned: Collection[str] = (),
) -> list[Orphan]:
    """Sidecars, batch objects and temporary files that belong to no checkpoint.

    `manifests` has every id that exists; None where the manifest is damaged or was not read, and then nothing
    of that id is an orphan. `owned` are the keys that some checkpoint owns, `abandoned` those
    that their own writer has given up, whatever their age.
    """
    settled = {info.key: info for info in listing if info.modified <= written_before or info.key in abandoned}
    unlisted = {manifest.epoch for manifest in manifests.values() if manifest and not manifest.needed_batches}
    found = []
    for key, info in settled.items():
        if key in owned:
            continue
        sidecar = layout.sidecar_id(key)
        batch = BATCH.fullmatch(key)
        if sidecar is not None and sidecar not in manifests:
            found.append(Orphan(key, info.size, f"checkpoint {sidecar} was never saved, or has been removed"))
        elif sidecar is not None and manifests[sidecar] is not None:
            found.append(Orphan(key, info.size, f"checkpoint {sidecar} was saved with another sidecar"))
        elif batch and None not in manifests.values() and int(batch["epoch"]) not in unlisted:
            found.append(Orphan(key, info.size, f"no checkpoint lists this batch of epoch {int(batch['epoch'])}"))
    found += [
        Orphan(
            info.key, info.size, "left by an interrupted write" if info.size else "empty, left by an interrupted write"
        )
        for info in leftovers
        if info.modified <= written_before
    ]
    return found
