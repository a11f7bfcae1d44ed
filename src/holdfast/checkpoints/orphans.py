"""What no checkpoint owns: a pure decision over a listing.

Only names that Holdfast or LaminarDB give are ever considered, so a stranger's file is never touched.
Something young may belong to a checkpoint that is being written right now, and is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.checkpoints.layout import BATCH, Layout
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.storage.objects.store import ObjectInfo


class Orphan(msgspec.Struct, frozen=True):
    """An object to remove, and why nobody needs it."""

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
