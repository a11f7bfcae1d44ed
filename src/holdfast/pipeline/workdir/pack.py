"""Packing a workdir's files into batch objects: on the driver, or as a Spark job where the files are large.

Either way a file is one entry, or several if it is large, and counts only once a manifest lists its batch objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.base.jvm import default_parallelism, is_one_process, run_on_executors
from holdfast.checkpoints import CheckpointBatcher, CheckpointStore
from holdfast.checkpoints.batcher import HasLease
from holdfast.checkpoints.manifest import BatchEntry
from holdfast.pipeline.workdir.addresses import read_part
from holdfast.pipeline.workdir.entries import Entries, parts_of
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.storage.objects import ObjectStore, open_objects
from holdfast.storage.objects.spark_access import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKED_TOGETHER = 16 << 20
"""Bytes of files that go into one batch object; a larger file has one of its own.

Buffers of this size are reused; from 32 MiB on each one is fetched from the kernel anew, page by page, which takes
longer than all the checksums.
"""

LARGE = 8 << 20
"""From this many bytes on, a job on the executors is faster than the driver alone."""

Packing = Callable[[CheckpointStore, Workdir, Mapping[str, int], int], dict[str, Entries]]
"""Writes files (path to size) for an epoch, and returns the entries in batch objects that hold each."""


def pack_on_driver(
    store: CheckpointStore, workdir: Workdir, files: Mapping[str, int], epoch: int
) -> dict[str, Entries]:
    """Pack all files on the driver."""
    return _pack(store, workdir, files, epoch, prefix="")


def packing_for(spark: SparkSession, access: Access | None) -> Packing:
    """Pack small snapshots on the driver and large ones as a Spark job, if executors are separate processes.

    They must see the workdir and reach the store as the driver does. `access` is None if that is not known.
    """
    if access is None or is_one_process(spark):
        return pack_on_driver

    def pack(store: CheckpointStore, workdir: Workdir, files: Mapping[str, int], epoch: int) -> dict[str, Entries]:
        if sum(files.values()) < LARGE:
            return pack_on_driver(store, workdir, files, epoch)
        store.recheck_lease()
        groups = split_evenly(files, default_parallelism(spark))
        job = _PackingJob(access.address, access.options_now(), workdir, epoch)
        sized = [(number, {path: files[path] for path in group}) for number, group in enumerate(groups)]
        packed = run_on_executors(spark, job, sized)
        missing = [path for group in packed for path, entries in group if entries is None]
        if missing:
            raise FileNotFoundError(missing[0])
        return {path: entries for group in packed for path, entries in group if entries is not None}

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
    """The task of an executor: pack one group of files into batch objects under a prefix of its own."""

    def __init__(self, address: str, options: dict[str, str] | None, workdir: Workdir, epoch: int) -> None:
        self._address = address
        self._options = options
        self._workdir = workdir
        self._epoch = epoch

    def __call__(self, group: tuple[int, dict[str, int]]) -> list[tuple[str, Entries | None]]:
        """The files of a group, each with its entries; None for a file that Spark has removed meanwhile."""
        number, files = group
        objects = open_objects(self._address, options=self._options)
        try:
            packed = _pack(objects, self._workdir, files, self._epoch, prefix=f"nodes/{number}/")
        except FileNotFoundError as error:
            return [(str(error.filename), None)]
        return list(packed.items())


def _pack(
    where: ObjectStore | HasLease | Any, workdir: Workdir, files: Mapping[str, int], epoch: int, *, prefix: str
) -> dict[str, Entries]:
    batcher = CheckpointBatcher(where, prefix, PACKED_TOGETHER)
    packed: dict[str, Entries] = {}
    waiting: list[str] = []

    def flush() -> None:
        batch = batcher.flush(epoch)
        if batch is not None:
            for index, path in enumerate(waiting):
                packed[path] = (*packed.get(path, ()), BatchEntry(batch, index))
        waiting.clear()

    for part in (part for path, size in files.items() for part in parts_of(path, size)):
        data = read_part(workdir, part)
        if len(data) >= PACKED_TOGETHER:
            flush()
        batcher.add(part.name, data)
        waiting.append(part.path)
        if batcher.should_flush():
            flush()
    flush()
    return packed
