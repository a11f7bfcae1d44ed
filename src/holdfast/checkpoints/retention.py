"""Retention: which checkpoints may be removed, by number and by age, and which objects are orphans. Pure.

Only objects with names that Holdfast or LaminarDB give can be orphans; any other file is never touched. A young object
is left alone, because it may belong to a checkpoint that is being written right now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.base.arguments import check_count, refused
from holdfast.base.durations import read_duration
from holdfast.checkpoints.layout import BATCH, Layout
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Invalid
from holdfast.storage.objects.store import ObjectInfo

THINNING = ((0, 1), (300, 60), (7200, 3600), (3 * 86400, 86400))
"""Pairs in seconds: how long ago a slot ended, and how long slots are from then on. One checkpoint of each stays."""


class CheckpointRefs(msgspec.Struct, frozen=True):
    """The facts about one checkpoint that retention depends on."""

    is_complete: bool
    """No fatal issue, every sink committed, and all of its own objects exist."""
    is_readable: bool = True
    parent_id: int | None = None
    objects: tuple[str, ...] = ()
    """Sidecar and batch objects, removed after the manifest."""
    bytes: int = 0
    is_settled: bool = False
    """Every sink committed, by the manifest alone."""
    timestamp_ms: int = 0


def check_retained(max_retained: int | None) -> int | None:
    """How many complete checkpoints to keep; None and 0 mean all."""
    if max_retained is None or max_retained == 0:
        return None
    return check_count("max_retained", max_retained)


def check_age(keep: Any, max_retained: int | None) -> float | None:
    """How long checkpoints are kept, in seconds; None if only their number counts."""
    if keep is None:
        return None
    try:
        seconds = keep.total_seconds() if isinstance(keep, timedelta) else read_duration(keep).seconds
    except ValueError as error:
        raise refused("keep", f"{error}, nor a timedelta") from None
    if seconds <= 0:
        raise refused("keep", f"it must be longer than nothing, not {keep!r}")
    if max_retained is None:
        raise refused(
            "keep", "max_retained=None keeps every checkpoint; give the number that stay however old they are"
        )
    return seconds


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


def removable(
    ids: Sequence[int],
    look: Callable[[int], CheckpointRefs],
    keep: int,
    *,
    young: Collection[int] = (),
    read: Callable[[int], CheckpointRefs] | None = None,
) -> list[int]:
    """The ids to remove so that `keep` complete checkpoints stay, and those in `young`, ascending.

    Guarantees: the `keep` newest complete checkpoints stay, with all newer ones and with every ancestor that any of
    these builds on. `look` is called only for checkpoints that stay. `read` is called for ancestors: it reads the
    manifest and does not look at its objects; by default it is `look`.
    """
    there = set(ids)
    kept = _newest_complete(there, look, keep)
    if not kept:
        return []
    ancestors, unknown_below = _ancestors([*kept, *young], there, read or look)
    staying = ancestors.union(young)
    return sorted(n for n in there if unknown_below < n < kept[-1] and n not in staying)


class Ancestor(msgspec.Struct, frozen=True):
    """A checkpoint that stays although it is older than those that are kept."""

    checkpoint_id: int
    needed_by: tuple[int, ...]
    """The kept checkpoints that build on it; if not `is_certain`, the damaged ancestor that may."""
    is_certain: bool = True


def needed_ancestors(ids: Sequence[int], look: Callable[[int], CheckpointRefs], keep: int) -> list[Ancestor]:
    """The older checkpoints that `removable` leaves for the same arguments, with the reason for each; ascending."""
    there = set(ids)
    kept = _newest_complete(there, look, keep)
    if not kept:
        return []
    older = sorted(n for n in there if n < kept[-1])
    needed_by: dict[int, list[int]] = {}
    for checkpoint_id in reversed(kept):
        for ancestor in _ancestors([checkpoint_id], there, look)[0]:
            needed_by.setdefault(ancestor, []).append(checkpoint_id)
    unknown_below = _ancestors(kept, there, look)[1]
    return [
        Ancestor(n, tuple(needed_by[n])) if n in needed_by else Ancestor(n, (unknown_below,), is_certain=False)
        for n in older
        if n in needed_by or n < unknown_below
    ]


def _newest_complete(there: set[int], look: Callable[[int], CheckpointRefs], keep: int) -> list[int]:
    """The ids down to the `keep`th complete checkpoint, newest first; none if there are fewer complete ones."""
    kept: list[int] = []
    complete = 0
    for checkpoint_id in sorted(there, reverse=True):
        kept.append(checkpoint_id)
        complete += _chain_is_complete(checkpoint_id, there, look)
        if complete == keep:
            return kept
    return []


def kept_by_age(times: Mapping[int, int], *, now_ms: int, age: float) -> set[int]:
    """The checkpoints that stay because they are young, given the time of each.

    The older they are, the fewer (`THINNING`): time is cut into slots, and of each slot the first checkpoint stays. A
    longer slot replaces whole shorter ones, all at once, so its first checkpoint was the first of a shorter slot
    before, and is still there. The longest slots that `age` needs are given up as a whole, each when its end is older
    than `age`, so that one can go back by at least `age` if a checkpoint was saved in each.

    Guarantees: a checkpoint that stays at some time has stayed at all times before.
    """
    slots = [(limit * 1000, width * 1000) for limit, width in THINNING if limit == 0 or limit < age]
    longest = slots[-1][1]
    kept: dict[tuple[int, int], int] = {}
    for checkpoint_id, time_ms in sorted(times.items()):
        if _end(time_ms, longest) <= now_ms - age * 1000:
            continue
        width = next((width for limit, width in reversed(slots) if _end(time_ms, width) <= now_ms - limit), slots[0][1])
        kept.setdefault((width, time_ms // width), checkpoint_id)
    return set(kept.values())


def _end(time: int, width: int) -> int:
    """The end of the slot of this width that has this time."""
    return (time // width + 1) * width


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


def is_due(checkpoint_id: int, ids: Collection[int], every: int) -> bool:
    """Whether a task that is done about once in `every` checkpoints is due after this one.

    It is done less often the more checkpoints are kept, so that a task that looks at all of them costs each save the
    same. Only ids count, so it is done as often in a pipeline that is started anew for each epoch.
    """
    before = checkpoint_id - 1  # nearly always there; a search in ten thousand ids takes as long as a write
    if before not in ids:
        before = max((number for number in ids if number < checkpoint_id), default=checkpoint_id)
    rhythm = every * (1 + len(ids) // every)
    return before // rhythm < checkpoint_id // rhythm


def has_doubled(before: int, checkpoint_id: int, every: int) -> bool:
    """Whether something is due that is done at checkpoint `every`, and each time that their number has doubled since.

    Where every checkpoint is kept, reading them all comes so to less than two reads per save.
    """
    return (before // every).bit_length() < (checkpoint_id // every).bit_length()


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
