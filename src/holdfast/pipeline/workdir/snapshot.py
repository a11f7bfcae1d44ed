"""Incremental snapshots of the workdir: the files that Spark needs, in batch objects, each file written once.

A snapshot for batch N holds what running N again needs: state of version N, which is final, because Spark counts N-1 as
done. Nothing that is still being written is ever read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import BatchObject
from holdfast.errors import Corrupt, HoldfastError
from holdfast.pipeline.workdir.pack import Packing, pack_on_driver
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sparkdir.directory import FileStamp
from holdfast.sparkdir.state_files import files_for_batch, is_immutable, newest_versions

COMPACTED_AT_LEAST = 64 << 10
"""Compaction may always rewrite this many bytes, so that objects with little live data can go."""

COMPACTED_SHARE = 0.05
MOSTLY_DEAD = 0.5


class FileLocation(msgspec.Struct, frozen=True):
    """The batch object that holds a file's bytes, and the file's stamp in the workdir when they were read."""

    batch: BatchObject
    size: int
    stamp: FileStamp


class Snapshot(msgspec.Struct, frozen=True):
    """The files of one batch, written, though no manifest names them yet."""

    batches: list[BatchObject]
    """Written for this snapshot."""
    inherited: list[BatchObject]
    """Written by earlier ones, and still needed."""
    locations: dict[str, FileLocation] = {}
    new_bytes: int = 0
    """Of files, before packing."""


def choose_compaction(locations: Mapping[str, FileLocation], new_bytes: int) -> set[str]:
    """Files to write again although the store has them, so that old objects with little left in them can go. Pure.

    Spends at most a small share of what is written anyway; the objects that free most for least come first.
    """
    live: dict[str, list[str]] = {}
    for path, location in locations.items():
        live.setdefault(location.batch.key, []).append(path)
    budget = max(COMPACTED_AT_LEAST, int(new_bytes * COMPACTED_SHARE))
    chosen: set[str] = set()
    costs = sorted((sum(locations[path].size for path in paths), key) for key, paths in live.items())
    for cost, key in costs:
        batch = locations[live[key][0]].batch
        is_worth_it = len(live[key]) <= batch.entries * MOSTLY_DEAD
        if is_worth_it and cost <= budget:
            chosen.update(live[key])
            budget -= cost
    return chosen


class WorkdirSnapshotter:
    """Takes snapshots of one workdir, and knows which of its files the store has already."""

    def __init__(self, workdir: Workdir, store: CheckpointStore, pack: Packing | None = None) -> None:
        self._workdir = workdir
        self._store = store
        self._pack = pack or pack_on_driver
        self._held: dict[str, FileLocation] = {}
        self._order: dict[str, int] = {}
        self._archives: dict[tuple[str, FileStamp], bytes] = {}

    def begin(self, held: Mapping[str, BatchObject], order: Sequence[BatchObject]) -> None:
        """Go on from a checkpoint whose files are unchanged in the workdir."""
        self._order = {batch.key: place for place, batch in enumerate(order)}
        self._held = {}
        for path, batch in held.items():
            found = os.stat(self._workdir.path / path)
            self._held[path] = FileLocation(batch, found.st_size, FileStamp(found.st_size, found.st_mtime_ns))

    def snapshot(self, batch_id: int, epoch: int) -> Snapshot:
        """Write everything that batch `batch_id` needs and the store does not have; durable on return.

        Nothing counts until `confirm`: an epoch that fails leaves objects that no checkpoint names.
        """
        for attempt in range(3):
            stamps = dict(self._workdir.spark_checkpoint.files())
            try:
                needed = files_for_batch(stamps, batch_id, partial(self._archive, stamps))
                self._check_complete(needed, batch_id)
                return self._write(needed, stamps, epoch)
            except (FileNotFoundError, Corrupt) as problem:
                # Spark's own clean-up may have come between the look and the read; what is really needed stays.
                if attempt == 2:
                    raise _unreadable(self._workdir, problem) from problem
        raise AssertionError("unreachable")

    def confirm(self, snapshot: Snapshot) -> None:
        """The checkpoint that names this snapshot is saved: from now on its files need not be written again."""
        self._held = snapshot.locations
        self._order = {batch.key: place for place, batch in enumerate([*snapshot.inherited, *snapshot.batches])}

    def _write(self, needed: set[str], stamps: Mapping[str, FileStamp], epoch: int) -> Snapshot:
        held = {path: self._held[path] for path in needed if self._is_held(path, stamps)}
        new = {path: stamps[path][0] for path in sorted(needed - held.keys())}
        new_bytes = sum(new.values())
        # Compact only objects whose files are all unchanged. If a file changed, the stored copy is the only good one.
        spoiled = {location.batch.key for path, location in held.items() if location.stamp != stamps[path]}
        sound = {path: location for path, location in held.items() if location.batch.key not in spoiled}
        again = choose_compaction(sound, new_bytes)
        written = {**new, **{path: stamps[path][0] for path in sorted(again)}}
        with step("capture.pack", files=len(written), bytes=new_bytes):
            packed = self._pack(self._store, self._workdir, written, epoch)
        kept = {path: location for path, location in held.items() if path not in again}
        fresh = {path: FileLocation(batch, stamps[path][0], stamps[path]) for path, batch in packed.items()}
        inherited = {location.batch.key: location.batch for location in kept.values()}
        return Snapshot(
            batches=_distinct(packed.values()),
            inherited=sorted(inherited.values(), key=lambda batch: self._order[batch.key]),
            locations={**kept, **fresh},
            new_bytes=new_bytes,
        )

    def _check_complete(self, needed: set[str], batch_id: int) -> None:
        """A checkpoint with a hole is worse than none: it would be trusted."""
        wanted = {"metadata", f"offsets/{batch_id}"}
        if batch_id > 0:
            wanted |= {f"offsets/{batch_id - 1}", f"commits/{batch_id - 1}"}
        missing = sorted(wanted - needed)
        before, now = newest_versions(self._held), newest_versions(needed)
        missing += sorted(
            store for store, version in before.items() if version == batch_id - 1 and now.get(store) != batch_id
        )
        if missing:
            raise Corrupt(f"{missing[0]} is not there, or not whole.", code="workdir.state-file", about=missing[0])

    def _is_held(self, path: str, stamps: Mapping[str, FileStamp]) -> bool:
        """Whether the store has this file. Immutable files match by name: if one changed, a fenced driver wrote it."""
        if path not in self._held:
            return False
        return is_immutable(path) or self._held[path].stamp == stamps[path]

    def _archive(self, stamps: Mapping[str, FileStamp], path: str) -> bytes:
        """RocksDB's archives never change; one that was read need not be read again."""
        stamp = stamps[path]
        if (path, stamp) not in self._archives:
            if len(self._archives) > 4096:
                self._archives.clear()
            self._archives[path, stamp] = (self._workdir.path / path).read_bytes()
        return self._archives[path, stamp]


def _distinct(batches: Iterable[BatchObject]) -> list[BatchObject]:
    return list({batch.key: batch for batch in batches}.values())


def _unreadable(workdir: Workdir, problem: Exception) -> HoldfastError:
    text = problem.message if isinstance(problem, HoldfastError) else str(problem)
    return Corrupt(
        f"The workdir {workdir.home} lacks a file that Spark needs: {text}",
        code="workdir.incomplete",
        about=str(workdir.home),
        unchanged="every checkpoint and every sink",
        next_step="start the pipeline again: the workdir is rebuilt from the newest checkpoint",
    )
