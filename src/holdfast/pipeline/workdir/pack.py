"""Packing a workdir's files into batch objects: on the driver, or as a Spark job where the files are large.

Either way a file is one entry, named by its path, and it counts for nothing until a manifest names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.jvm import default_parallelism, is_one_process, run_on_executors
from holdfast.checkpoints import CheckpointBatcher, CheckpointStore
from holdfast.checkpoints.batcher import HasLease
from holdfast.checkpoints.manifest import BatchObject
from holdfast.pipeline.workdir.addresses import read_portable
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.storage.objects import ObjectStore, open_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKED_TOGETHER = 16 << 20
"""Bytes of files that go into one batch object; a larger file has one of its own.

Buffers of this size are reused; from 32 MiB on each one is fetched from the kernel anew, page by page, which takes
longer than all the checksums.
"""

LARGE = 8 << 20
"""From here on a job on the executors is worth its start."""

Packing = Callable[[CheckpointStore, Workdir, Mapping[str, int], int], dict[str, BatchObject]]
"""Writes files (path to size) for an epoch; says which batch object holds which."""


def pack_on_driver(
    store: CheckpointStore, workdir: Workdir, files: Mapping[str, int], epoch: int
) -> dict[str, BatchObject]:
    """Read and write everything here."""
    return _pack(store, workdir, list(files), epoch, prefix="")


class Reopening(msgspec.Struct, frozen=True):
    """How another process gets to the store."""

    address: str
    options: dict[str, str] | None = None


def packing_for(spark: SparkSession, reopening: Reopening | None) -> Packing:
    """Pack small snapshots on the driver and large ones as a Spark job, if executors are separate processes.

    They must see the workdir and reach the store as the driver does.
    """
    if reopening is None or is_one_process(spark):
        return pack_on_driver

    def pack(store: CheckpointStore, workdir: Workdir, files: Mapping[str, int], epoch: int) -> dict[str, BatchObject]:
        if sum(files.values()) < LARGE:
            return pack_on_driver(store, workdir, files, epoch)
        store.recheck_lease()
        groups = split_evenly(files, default_parallelism(spark))
        job = _PackingJob(reopening, workdir, epoch)
        packed = run_on_executors(spark, job, list(enumerate(groups)))
        missing = [path for group in packed for path, batch in group if batch is None]
        if missing:
            raise FileNotFoundError(missing[0])
        return {path: batch for group in packed for path, batch in group if batch is not None}

    return pack


def split_evenly(files: Mapping[str, int], count: int) -> list[list[str]]:
    """At most `count` groups of about as many bytes each, none empty. Pure."""
    groups: list[list[str]] = [[] for _ in range(min(count, len(files)))]
    sizes = [0] * len(groups)
    for path in sorted(files, key=lambda path: (-files[path], path)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(path)
        sizes[smallest] += files[path] + 1
    return groups


class _PackingJob:
    """What an executor does: one group of files into batch objects under a prefix of its own."""

    def __init__(self, reopening: Reopening, workdir: Workdir, epoch: int) -> None:
        self._reopening = reopening
        self._workdir = workdir
        self._epoch = epoch

    def __call__(self, group: tuple[int, list[str]]) -> list[tuple[str, BatchObject | None]]:
        """The files of a group with what holds them; None for one that Spark has removed meanwhile."""
        number, paths = group
        objects = open_objects(self._reopening.address, options=self._reopening.options)
        try:
            packed = _pack(objects, self._workdir, paths, self._epoch, prefix=f"nodes/{number}/")
        except FileNotFoundError as error:
            return [(str(error.filename), None)]
        return list(packed.items())


def _pack(
    where: ObjectStore | HasLease | Any, workdir: Workdir, paths: list[str], epoch: int, *, prefix: str
) -> dict[str, BatchObject]:
    batcher = CheckpointBatcher(where, prefix, PACKED_TOGETHER)
    packed: dict[str, BatchObject] = {}
    waiting: list[str] = []

    def flush() -> None:
        batch = batcher.flush(epoch)
        if batch is not None:
            packed.update(dict.fromkeys(waiting, batch))
        waiting.clear()

    for path in paths:
        data = read_portable(workdir, path)
        if len(data) >= PACKED_TOGETHER:
            flush()
        batcher.add(path, data)
        waiting.append(path)
        if batcher.should_flush():
            flush()
    flush()
    return packed
