"""Reference tables: the static side of a join, read at a recorded version."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.checkpoints import CheckpointStore
from holdfast.errors import Corrupt
from holdfast.pipeline.definition import VERSION, ReferenceTable
from holdfast.pipeline.recovery import newest_checkpoint
from holdfast.pipeline.workdir.workdir import Workdir

log = logging.getLogger("holdfast.spark")


def pin_table(
    name: str, version: str | int | Callable[[], str | int], store: CheckpointStore, workdir: Workdir
) -> ReferenceTable:
    """Choose the version of a run: the recorded one if the last epoch has to be run again, else the newest."""
    try:  # unverified: verification reads all of it, and happens after the claim
        newest = store.load_latest()
    except Corrupt:
        newest, _ = newest_checkpoint(store)
    recorded = newest.table_offsets.get(name) if newest else None
    wanted = str(version() if callable(version) else version)
    if newest is None or recorded is None or workdir.as_found().spark_checkpoint.has_committed(newest.wal_position):
        return ReferenceTable(name, wanted)
    pinned = recorded.offsets[VERSION]
    if pinned != wanted:
        log.warning(
            "table %r stays at version %s for this run, because epoch %d is run again; the next start reads %s",
            name,
            pinned,
            newest.epoch,
            wanted,
        )
    return ReferenceTable(name, pinned)
