"""Packing a workdir's files into batch objects: on the driver, or as a Spark job where the files are large.

Either way a file is one entry, or several if it is large, and counts only once a manifest lists its batch objects.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.base.addresses import HDFS_SCHEME, is_cloud, scheme_of
from holdfast.base.jvm import default_parallelism, is_one_process, run_on_executors
from holdfast.checkpoints import CheckpointBatcher, CheckpointStore
from holdfast.checkpoints.batcher import HasLease
from holdfast.checkpoints.manifest import BatchEntry
from holdfast.errors import HoldfastError
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

log = logging.getLogger("holdfast.spark")

Packing = Callable[[CheckpointStore, Workdir, Mapping[str, int], int], dict[str, Entries]]
"""Writes files (path to size) for an epoch, and returns the entries in batch objects that hold each."""


def pack_on_driver(
    store: CheckpointStore, workdir: Workdir, files: Mapping[str, int], epoch: int
) -> dict[str, Entries]:
    """Pack all files on the driver."""
    return _pack(store, workdir, files, epoch, prefix="")


def packing_for(spark: SparkSession, access: Access | None) -> Packing:
    """Pack small snapshots on the driver and large ones as a Spark job, if executors are separate processes.

    They must see the workdir and reach the store as the driver does. `access` is None if that is not known. Of a store
    on a path they prove that they see it, and write nothing if they do not.
    """
    if access is None or is_one_process(spark):
        return pack_on_driver
    is_path = not is_cloud(access.address) and scheme_of(access.address) != HDFS_SCHEME
    unshared: list[str] = []

    def pack(store: CheckpointStore, workdir: Workdir, files: Mapping[str, int], epoch: int) -> dict[str, Entries]:
        if sum(files.values()) < LARGE or unshared:
            return pack_on_driver(store, workdir, files, epoch)
        store.recheck_lease()
        groups = split_evenly(files, default_parallelism(spark))
        sized = [(number, {path: files[path] for path in group}) for number, group in enumerate(groups)]
        with _marker(store) if is_path else contextlib.nullcontext() as marker:
            job = _PackingJob(access.address, access.options_now(), workdir, epoch, marker)
            packed = run_on_executors(spark, job, sized)
        if any(group is None for group in packed):
            unshared.append(access.address)
            log.warning(
                "An executor does not see the checkpoints at %s: the driver packs all state by itself, which takes "
                "longer. Next: keep checkpoints where executors see them, on object storage, HDFS or a shared disk",
                access.address,
            )
            return pack_on_driver(store, workdir, files, epoch)
        for failure in (group for group in packed if isinstance(group, Exception)):
            raise failure
        return {path: entries for group in packed if isinstance(group, dict) for path, entries in group.items()}

    return pack


@contextlib.contextmanager
def _marker(store: CheckpointStore) -> Iterator[str]:
    """An object that says whether an executor's disk at the address of the store is the driver's."""
    key = f"nodes/seen-{uuid.uuid4().hex}"
    store.objects.create(key, [b"1"])
    try:
        yield key
    finally:
        store.objects.delete([key])


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

    def __init__(
        self, address: str, options: dict[str, str] | None, workdir: Workdir, epoch: int, marker: str | None
    ) -> None:
        """`marker` is the key of an object without which the store is another one."""
        self._marker = marker
        self._address = address
        self._options = options
        self._workdir = workdir
        self._epoch = epoch

    def __call__(self, group: tuple[int, dict[str, int]]) -> dict[str, Entries] | Exception | None:
        """The files of a group, each with its entries; None if the store is not seen here.

        An error is returned: raised, it would be run into again by Spark, and arrive as a text without a type.
        """
        number, files = group
        try:
            objects = open_objects(self._address, options=self._options)
            if self._marker is not None and objects.info(self._marker) is None:
                return None
            return _pack(objects, self._workdir, files, self._epoch, prefix=f"nodes/{number}/")
        except (HoldfastError, OSError) as error:
            return error


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
