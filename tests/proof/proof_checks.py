"""What must be true of a store after anything at all happened to it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from proof_works import Place, entries, sidecar, states

from holdfast.checkpoints import CheckpointStore, read_batch
from holdfast.checkpoints.layout import is_batch_key
from holdfast.checkpoints.manifest import CheckpointManifest


@dataclass
class Told:
    """What a caller was told and relies on, from the lines that a work acknowledged."""

    saved: set[int] = field(default_factory=set)
    committed: set[tuple[int, str]] = field(default_factory=set)
    generations: list[int] = field(default_factory=list)

    @classmethod
    def by(cls, lines: Iterable[str]) -> Told:
        told = cls()
        for line in lines:
            what, *about = line.split()
            if what == "saved":
                told.saved.add(int(about[0]))
            elif what == "committed":
                told.committed.add((int(about[0]), about[1]))
            elif what == "generation":
                told.generations.append(int(about[0]))
        return told


def assert_content(store: CheckpointStore, found: CheckpointManifest) -> None:
    """The bytes of a checkpoint are those that its manifest says it was saved with."""
    number = found.checkpoint_id
    said = found.source_offsets["orders"].offsets
    kind, variant = said["kind"], said["variant"]
    if kind in ("sidecar", "ahead"):
        assert store.load_state_data(number) == b"".join(sidecar(number, variant))
    elif kind == "states":
        assert store.load_states(number) == states(number, variant)
    else:
        assert store.load_state_data(number) is None
    if kind.startswith("batches"):
        assert len(found.own.batches) == int(kind[-1])
        for part, batch in enumerate(found.own.batches):
            stored = {name: bytes(data) for name, data in read_batch(store.objects, batch.key).entries()}
            assert stored == entries(number, part, variant)


def check(place: Place, lines: Iterable[str], keep: int | None, *, torn_is_seen: bool = False) -> list[int]:
    """Everything acknowledged is there, everything visible is right. Returns the visible ids.

    With `torn_is_seen` a checkpoint that nobody acknowledged, or that retention had given up, may also be there and
    be known as damaged. It may never be valid with other bytes.
    """
    told = Told.by(lines)
    store = place.open()
    ids = store.list_ids()
    keepers = sorted(told.saved | set(ids))[-keep:] if keep else told.saved
    relied_on = told.saved & set(keepers)
    assert relied_on <= set(ids), f"acknowledged {sorted(relied_on)}, found {ids}"
    validator = store.validator()
    for number in ids:
        result = validator.validate(number)
        if not result.valid and torn_is_seen and number not in relied_on:
            continue
        assert result.valid, f"checkpoint {number}: {result.reason}"
        found = store.load_by_id(number)
        assert found is not None
        assert_content(store, found)
        for of, sink in told.committed:
            assert of != number or found.sink_commit_statuses[sink] == "Committed", f"{sink} of {number} went back"
    report = store.recover_latest_validated()
    if not torn_is_seen:
        newest = store.load_latest()
        assert (newest.checkpoint_id if newest else None) == (ids[-1] if ids else None)
        assert report.chosen_id == (ids[-1] if ids else None)
        assert report.skipped == []
    if told.saved:
        assert report.chosen_id is not None
        assert report.chosen_id >= max(told.saved)
    pointer = store.latest_pointer()
    assert pointer is None or pointer in ids or torn_is_seen, f"latest names {pointer} of {ids}"
    assert len(set(told.generations)) == len(told.generations)
    return ids


def expected_keys(store: CheckpointStore) -> set[str]:
    """Every object that a store with these checkpoints should hold, and no other."""
    layout = store._catalog.layout
    ids = store.list_ids()
    keys = {layout.manifest_key(number) for number in ids}
    for number in ids:
        found = store.load_by_id(number)
        assert found is not None
        keys |= {batch.key for batch in found.own.batches}
        keys |= {found.own.sidecar.key} if found.own.sidecar else set()
    keys |= {layout.pointer_key} if store.objects.info(layout.pointer_key) else set()  # a power cut may tear it
    return keys | {info.key for info in store.objects.list("lease/")}


def check_tidy(place: Place, root: str | None = None, *, spare_batches_of: Iterable[int] = ()) -> None:
    """After a clean-up nothing is left but what the checkpoints need; with `root`, also by the look of the directory.

    `spare_batches_of`: epochs that are saved and may have batch objects of a dead attempt beside their own.
    """
    store = place.open()
    store.cleanup_orphans(older_than=0)
    spared = tuple(f"batch-{epoch:06}" for epoch in spare_batches_of)
    there = {info.key for info in store.objects.list("")}
    found = {key for key in there if not (is_batch_key(key) and any(name in key for name in spared))}
    expected = expected_keys(store)
    assert found - expected == set(), "left behind"
    assert expected - there == set(), "missing"
    if root is not None:
        files = {
            os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names
        }
        assert files == there, "hidden files are left"
        empty = [folder for folder, folders, names in os.walk(root) if not folders and not names]
        # Those that a layout or a batcher's prefix names stay; a folder of a checkpoint goes with it.
        assert [folder for folder in empty if "checkpoint_" in folder] == []
