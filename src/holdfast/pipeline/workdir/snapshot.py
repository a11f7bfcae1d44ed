"""Incremental snapshots of the workdir: the files that Spark needs, in batch objects, each file written once.

A snapshot for batch N holds what running N again needs: state of version N, which is final, because Spark counts N-1 as
done. Nothing that is still being written is ever read.
"""

from __future__ import annotations

import contextvars
import errno
import functools
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.base.jvm import spark_thread
from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import BatchObject, CheckpointManifest
from holdfast.errors import Corrupt, HoldfastError
from holdfast.pipeline.workdir.entries import Entries, bitmaps
from holdfast.pipeline.workdir.pack import Packing, pack_on_driver
from holdfast.pipeline.workdir.stamps import write_stamps
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sparkdir.next_batch import Names, files_of_next_batch, likely_names
from holdfast.sparkdir.operator_metadata import StateStore, stores_of_batch
from holdfast.sparkdir.state_files import (
    files_for_batch,
    is_archive,
    is_compacted_log,
    is_immutable,
    is_newer_than,
    missing_files,
    newest_versions,
    partition_versions,
    referred_names,
)
from holdfast.storage.files.directory import FileStamp

COMPACTED_AT_LEAST = 64 << 10
"""Compaction may always rewrite this many bytes, so that objects with little live data can go."""

LISTED_EVERY = 10
"""Where a listing is a request, snapshots that Spark made meanwhile are looked for in so many batches once."""

COMPACTED_SHARE = 0.05
MOSTLY_DEAD = 0.5


class FileLocation(msgspec.Struct, frozen=True):
    """The entries that hold a file's bytes, and the file's stamp in the workdir when they were read."""

    entries: Entries
    size: int
    stamp: FileStamp


class Snapshot(msgspec.Struct, frozen=True):
    """The files of one batch, written, though no manifest names them yet."""

    batches: list[BatchObject]
    """Written for this snapshot."""
    inherited: list[BatchObject]
    """Written for earlier snapshots, and still needed."""
    live: dict[str, str] = {}
    """The bitmaps of inherited batch objects that are needed for some of their entries only."""
    locations: dict[str, FileLocation] = {}
    batch_id: int | None = None
    partition_versions: list[int] = []
    """The version of each state partition; none before the first batch is done, and of a query without state."""
    new_bytes: int = 0
    """Of files, before packing."""


def choose_compaction(locations: Mapping[str, FileLocation], new_bytes: int) -> set[str]:
    """Files to write again although the store has them, so that old objects with little live data can go. Pure.

    Adds at most a small share to the bytes that are written anyway. Objects with the fewest live bytes come first.
    """
    live: dict[BatchObject, list[str]] = {}
    for path, location in locations.items():
        for entry in location.entries:
            live.setdefault(entry.batch, []).append(path)
    budget = max(COMPACTED_AT_LEAST, int(new_bytes * COMPACTED_SHARE))
    chosen: set[str] = set()
    costs = sorted(
        (sum(locations[path].size for path in set(paths)), batch.key, batch) for batch, paths in live.items()
    )
    for cost, _, batch in costs:
        dies_soon = any(is_compacted_log(path) for path in live[batch])
        is_worth_it = len(live[batch]) <= batch.entries * MOSTLY_DEAD and not dies_soon
        if is_worth_it and cost <= budget:
            chosen.update(live[batch])
            budget -= cost
    return chosen


class WorkdirSnapshotter:
    """Takes snapshots of one workdir, and knows which of its files the store has already.

    `is_stateful` says whether the query keeps state: then a snapshot without any state is not whole.
    """

    def __init__(
        self, workdir: Workdir, store: CheckpointStore, pack: Packing | None = None, *, is_stateful: bool = False
    ) -> None:
        self._is_stateful = is_stateful
        self._workdir = workdir
        self._store = store
        self._pack = pack or pack_on_driver
        self._held: dict[str, FileLocation] = {}
        self._held_for: int | None = None
        self._order: dict[str, int] = {}
        self._referred: dict[tuple[str, FileStamp], Collection[str]] = {}

    def begin(self, held: Mapping[str, Entries], order: Sequence[BatchObject]) -> None:
        """Go on from a checkpoint whose files are unchanged in the workdir."""
        self._order = {batch.key: place for place, batch in enumerate(order)}
        self._held, self._held_for = {}, None
        directory = self._workdir.directory
        stamps = self._stamps(held) if directory.lists_cheaply else dict(directory.files())
        for path, entries in held.items():
            self._held[path] = FileLocation(entries, stamps[path].size, stamps[path])

    def snapshot(self, batch_id: int, epoch: int) -> Snapshot:
        """Write everything that batch `batch_id` needs and the store does not have; durable on return.

        Nothing counts until `confirm`: an epoch that fails leaves objects that no checkpoint names.
        """
        is_listed = self._held_for != batch_id - 1
        for attempt in range(3):
            try:
                expected = None if is_listed or attempt else self._expected_files(batch_id)
                stamps = self._listed_files(batch_id) if expected is None else expected
                stores = stores_of_batch(stamps, batch_id, self._workdir.spark_checkpoint.read)
                self._check_complete(stamps.keys(), batch_id, stores)
                found = self._write(stamps, batch_id, epoch)
                return msgspec.structs.replace(found, partition_versions=partition_versions(stamps, stores))
            except (FileNotFoundError, Corrupt) as problem:
                # Spark may remove an old file between the listing and the read; it keeps the files that are needed.
                if attempt == 2:
                    raise _unreadable(self._workdir, problem) from problem
        raise AssertionError("unreachable")

    def confirm(self, snapshot: Snapshot) -> None:
        """The checkpoint that names this snapshot is saved: from now on its files need not be written again."""
        self._held, self._held_for = snapshot.locations, snapshot.batch_id
        self._order = {batch.key: place for place, batch in enumerate([*snapshot.inherited, *snapshot.batches])}

    def leave_stamps(self, manifest: CheckpointManifest, *, is_clean: bool) -> None:
        """Leave stamps for the next start: the query has ended, and `manifest` is the newest checkpoint.

        Only a clean end vouches for what Spark wrote since the checkpoint.
        """
        if not is_clean and not self._workdir.vouches_after_failure:
            return
        stamps = dict(self._workdir.spark_checkpoint.files())
        held = {path: found.entries for path, found in self._held.items() if found.stamp == stamps.get(path)}
        if held.keys() == self._held.keys():
            newer = [path for path in stamps if path not in held and is_newer_than(path, manifest.wal_position)]
            write_stamps(self._workdir, self._store.objects, manifest, held, newer if is_clean else ())

    def _listed_files(self, batch_id: int) -> dict[str, FileStamp]:
        """What a batch needs, by a listing of the whole workdir."""
        stamps = dict(self._workdir.spark_checkpoint.files())

        def referred(path: str) -> Collection[str]:
            return self._referred_names(path, stamps[path])

        return {path: stamps[path] for path in files_for_batch(stamps, batch_id, referred)}

    def _expected_files(self, batch_id: int) -> dict[str, FileStamp] | None:
        """What a batch needs, by what the batch before it needed; None if that does not suffice.

        Of files that never change and that the store has, the stamp is the one from then.
        """
        spark_checkpoint = self._workdir.spark_checkpoint
        logs = {f"offsets/{batch_id - 1}", f"commits/{batch_id - 1}"}
        stores = stores_of_batch(self._held.keys() | logs, batch_id, spark_checkpoint.read)

        archives = self._workdir.directory.stamps(filter(is_archive, self._held))

        def referred(path: str) -> Collection[str]:
            if path not in archives:
                archives.update(self._stamps([path]))
            return self._referred_names(path, archives[path])

        if self._workdir.directory.lists_cheaply:
            names: Names = spark_checkpoint.names
        elif batch_id % LISTED_EVERY == 0:
            return None
        else:
            names = likely_names(self._held.keys(), batch_id, spark_checkpoint.names)
        needed = files_of_next_batch(self._held.keys(), batch_id, stores, names, referred)
        if needed is None:
            return None
        known = {path: self._held[path].stamp for path in needed if path in self._held and is_immutable(path)}
        known |= {path: archives[path] for path in needed & archives.keys()}
        return known | self._stamps(needed - known.keys())

    def _stamps(self, paths: Iterable[str]) -> dict[str, FileStamp]:
        """The stamps of these files. `FileNotFoundError` if one is not there, or is not a file."""
        wanted = list(paths)
        found = self._workdir.directory.stamps(wanted)
        for path in wanted:
            if path not in found:
                raise FileNotFoundError(errno.ENOENT, "it is not there, or is not a file", path)
        return found

    def _write(self, stamps: Mapping[str, FileStamp], batch_id: int, epoch: int) -> Snapshot:
        held = {path: self._held[path] for path in stamps if self._is_held(path, stamps)}
        new = {path: stamps[path][0] for path in sorted(stamps.keys() - held.keys())}
        new_bytes = sum(new.values())
        # Compact only objects whose files are all unchanged. If a file changed, the stored copy is the only good one.
        changed = [location for path, location in held.items() if location.stamp != stamps[path]]
        spoiled = _batches(changed)
        sound = {path: location for path, location in held.items() if not spoiled.keys() & _batches([location]).keys()}
        again = choose_compaction(sound, new_bytes)
        self._check_unchanged({path: stamps[path] for path in again})
        written = {**new, **{path: stamps[path][0] for path in sorted(again)}}
        with step("capture.pack", files=len(written), bytes=new_bytes):
            packed = self._pack(self._store, self._workdir, written, epoch)
        self._check_unchanged({path: stamps[path] for path in written if is_archive(path) or len(packed[path]) > 1})
        kept = {path: location for path, location in held.items() if path not in again}
        fresh = {path: FileLocation(entries, stamps[path][0], stamps[path]) for path, entries in packed.items()}
        return Snapshot(
            batches=list(_batches(fresh.values()).values()),
            inherited=sorted(_batches(kept.values()).values(), key=lambda batch: self._order[batch.key]),
            live=bitmaps(entry for location in kept.values() for entry in location.entries),
            locations={**kept, **fresh},
            batch_id=batch_id,
            new_bytes=new_bytes,
        )

    def _check_complete(self, needed: Collection[str], batch_id: int, stores: Collection[StateStore]) -> None:
        """`Corrupt` if a file is missing: an incomplete checkpoint is worse than none, because it would be trusted."""
        missing = missing_files(needed, batch_id, stores, is_stateful=self._is_stateful)
        before, now = newest_versions(self._held), newest_versions(needed)
        missing += sorted(
            store for store, version in before.items() if version == batch_id - 1 and now.get(store) != batch_id
        )
        if missing:
            raise Corrupt(f"{missing[0]} is not there, or not whole.", code="workdir.state-file", about=missing[0])

    def _check_unchanged(self, stamps: Mapping[str, FileStamp]) -> None:
        """`Corrupt` if a file has another stamp than this: its parts, or it and the files it names, may not match."""
        found = self._stamps(stamps)
        changed = next((path for path in stamps if found[path] != stamps[path]), None)
        if changed is not None:
            raise Corrupt(f"{changed} has changed while it was captured.", code="workdir.state-file", about=changed)

    def _is_held(self, path: str, stamps: Mapping[str, FileStamp]) -> bool:
        """Whether the store has this file. Immutable ones match by name: a changed one is of no attempt that counts."""
        if path not in self._held:
            return False
        return is_immutable(path) or self._held[path].stamp == stamps[path]

    def _referred_names(self, path: str, stamp: FileStamp) -> Collection[str]:
        """An archive with the same stamp is not read again."""
        if (path, stamp) not in self._referred:
            if len(self._referred) > 4096:
                self._referred.clear()
            self._referred[path, stamp] = referred_names(self._workdir.directory.read(path), path)
        return self._referred[path, stamp]


class SnapshotBeside:
    """A snapshot that is taken in a thread of its own while the sinks stage: an epoch costs the longer of the two.

    State of version N is final when batch N begins, so nothing that the batch writes is read. Until the thread has
    ended nothing else may use the store's handle.
    """

    def __init__(self, snapshotter: WorkdirSnapshotter, batch_id: int, epoch: int) -> None:
        self._take = functools.partial(snapshotter.snapshot, batch_id, epoch)
        self._taken: Snapshot | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin, if it has not begun."""
        if self._thread is None:
            work = functools.partial(contextvars.copy_context().run, self._work)
            self._thread = spark_thread(work, "holdfast-snapshot")
            self._thread.start()

    def result(self) -> Snapshot:
        """Wait for it, and return it or raise what made it fail."""
        self.begin()
        self.close()
        if self._failure is not None:
            raise self._failure
        assert self._taken is not None
        return self._taken

    def close(self) -> None:
        """Wait until it has ended, whatever comes of it."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            self._taken = self._take()
        except BaseException as failure:
            self._failure = failure


def _batches(locations: Iterable[FileLocation]) -> dict[str, BatchObject]:
    """The batch objects that hold files, by their keys."""
    return {entry.batch.key: entry.batch for location in locations for entry in location.entries}


def _unreadable(workdir: Workdir, problem: Exception) -> HoldfastError:
    text = problem.message if isinstance(problem, HoldfastError) else str(problem)
    return Corrupt(
        f"The workdir {workdir.address} lacks a file that Spark needs: {text}",
        code="workdir.incomplete",
        about=workdir.address,
        unchanged="every checkpoint and every sink",
        next_step="start the pipeline again: the workdir is rebuilt from the newest checkpoint",
    )
