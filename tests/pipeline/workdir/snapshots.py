"""A driver that takes a snapshot of a workdir made by hand for every batch, and what can be restored from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast import CheckpointManifest
from holdfast.checkpoints import read_batch
from holdfast.checkpoints.manifest import HoldfastSection
from holdfast.pipeline.workdir.restore import restore
from holdfast.pipeline.workdir.snapshot import (
    Snapshot,
    WorkdirSnapshotter,
)
from holdfast.sparkdir.state_files import files_for_batch, referred_names
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from workdir_files import OWNER, HandMade, HdfsState, RocksState


class Driver:
    """Captures and saves a checkpoint for every batch of a workdir made by hand."""

    def __init__(
        self, place: StoreUnderTest, root: Path, *, max_retained: int | None = None, is_stateful: bool = False
    ) -> None:
        self.place = place
        self.store = place.open(max_retained=max_retained)
        self.made = HandMade(root)
        self.made.begin()
        self.snapshotter = WorkdirSnapshotter(self.made.workdir, self.store, is_stateful=is_stateful)
        self.newest: CheckpointManifest | None = None

    def epoch(self, batch_id: int, *states: HdfsState | RocksState) -> Snapshot:
        """What is there when a batch begins, the snapshotter, the checkpoint, and then what the batch writes."""
        self.made.plan(batch_id)
        for state in states:
            state.plan(batch_id)
        captured = self.snapshotter.snapshot(batch_id, batch_id + 1)
        self.save(batch_id, captured)
        self.snapshotter.confirm(captured)
        for state in states:
            state.run(batch_id)
        self.made.commit(batch_id)
        return captured

    def save(self, batch_id: int, captured: Snapshot) -> CheckpointManifest:
        is_child = bool(captured.inherited)
        found = manifest(
            batch_id + 1,
            wal_position=batch_id,
            is_incremental=is_child,
            parent_id=batch_id if is_child else None,
            holdfast=HoldfastSection(batches=captured.batches, inherited=captured.inherited, live=captured.live),
        )
        self.store.save(found)
        self.newest = found
        return found

    def load(self, batch_id: int) -> CheckpointManifest:
        found = self.place.open().load_by_id(batch_id + 1)
        assert found is not None
        return found

    def stored(self) -> dict[str, list[str]]:
        """Every batch object there is, and the files in it."""
        keys = [key for key in self.place.all_keys() if key.endswith(".lz4")]
        return {key: list(read_batch(self.place.objects, key).keys()) for key in keys}

    def needed(self, batch_id: int) -> dict[str, bytes]:
        """What running a batch needs of the workdir as it is."""
        files = self.made.files()
        return {path: files[path] for path in files_for_batch(files, batch_id, names_in(files))}


def names_in(files: Mapping[str, bytes]) -> Callable[[str], set[str]]:
    """What the archives among these files refer to."""
    return lambda path: referred_names(files[path], path)


def restored(place: StoreUnderTest, found: CheckpointManifest, root: Path) -> dict[str, bytes]:
    made = HandMade(root)
    restore(made.workdir, place.objects, found, OWNER)
    assert made.workdir.owner() == OWNER
    return made.files()
