"""Epochs run in a world of fakes, and what the store says of them afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from epoch_fakes import Killed, Rows, World, epoch_facts

from holdfast import CheckpointManifest, CheckpointStore, SinkCommitStatus
from holdfast.pipeline.epoch import EpochCoordinator
from holdfast.pipeline.epoch_manifest import with_statuses

FIRST, SECOND = ("rows of the first try",), ("other rows",)
COMMITTED, PENDING = SinkCommitStatus.committed(), SinkCommitStatus.pending()


def newest(store: CheckpointStore) -> CheckpointManifest:
    found = store.load_latest()
    assert found is not None
    return found


def statuses(store: CheckpointStore) -> dict[str, Any]:
    return dict(newest(store).sink_commit_statuses)


def run(world: World, runner: EpochCoordinator, epoch: int, rows: Rows = FIRST) -> None:
    world.run(runner, rows, epoch_facts(epoch))


def decided(world: World, **status: Any) -> CheckpointManifest:
    """Epoch 1 decided by a driver that ended before its commits, but for those that are said to be."""
    world.failures.planned["commit lake"] = Killed()
    with pytest.raises(Killed):
        run(world, world.start(), 1)
    found = newest(world.store)
    for name in status:
        world.sinks[name].visible[0, 1] = [FIRST]
    if status:
        found = with_statuses(found, status)
        world.store.update_manifest(found)
    world.history.clear()
    return found
