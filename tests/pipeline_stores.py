"""Stores and events of a pipeline, made without Spark: real manifests and batch objects, a workdir as Spark has it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import CheckpointManifest, ConnectorCheckpoint, SinkCommitStatus
from holdfast.checkpoints import CheckpointBatcher
from holdfast.checkpoints.manifest import BatchObject, HoldfastSection
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.spark import EpochReport

NOW = 1_767_225_679_000
QUERY = "cde978fc-2d7a-490e-b9d1-eb420c62384a"
OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":%d}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def report(epoch: int = 7, **changes: Any) -> EpochReport:
    """An epoch of a pipeline with two sinks."""
    plain = EpochReport(
        pipeline="orders",
        epoch=epoch,
        lineage=0,
        checkpoint_id=epoch,
        rows=1200,
        rows_per_second=812.5,
        seconds=1.5,
        watermark=NOW,
        lag={"orders": "3 files"},
        steps={
            "sink.stage": 0.7,
            "epoch.capture": 0.05,
            "epoch.decide": 0.01,
            "sink.commit": 0.2,
            "epoch.settle": 0.04,
        },
        sinks={"lake": "Committed", "pg": "Committed"},
        checkpoint_bytes=3686,
    )
    return msgspec.structs.replace(plain, **changes)


class PipelineStore:
    """The store of a pipeline that has done some epochs, with a workdir beside its checkpoints."""

    def __init__(self, root: Path, query_id: str = QUERY) -> None:
        self.root = root
        self.query_id = query_id
        self.store = holdfast.open_store(root, max_retained=None)
        self.workdir = LocalWorkdir(root / "workdir")
        self.store.claim("driver-1")

    def run_epoch(self, epoch: int, *, is_committed: bool = True, **changes: Any) -> None:
        """What an epoch leaves behind; `is_committed` says whether Spark itself has counted it as done."""
        self._plan(epoch - 1)
        own = HoldfastSection(
            batches=[self._capture(epoch)],
            runtime={
                "pipeline": "orders",
                "spark": "4.0.0",
                "query_id": self.query_id,
                "guarantees": {"lake": "exactly-once", "hook": "at-least-once"},
                "last_epoch": {"epoch": epoch - 1, "rows": 40, "rows_per_second": 20.5, "seconds": 1.95, "lag": {}},
            },
        )
        settings: dict[str, Any] = {
            "source_offsets": {"orders": ConnectorCheckpoint({"logOffset": str(epoch)}, epoch, {"connector": "json"})},
            "table_offsets": {"rates": ConnectorCheckpoint({"version": "12"}, epoch, {"connector": "table"})},
            "source_names": ["orders"],
            "sink_names": ["hook", "lake"],
            "sink_epochs": {"hook": epoch, "lake": epoch},
            "sink_commit_statuses": dict.fromkeys(("hook", "lake"), SinkCommitStatus.committed()),
            "table_store_checkpoint_path": str(self.workdir.path),
            "wal_position": epoch - 1,
            "watermark": NOW,
            "pipeline_hash": 0xFEED,
            "vnode_count": 2,
            "holdfast": own,
        }
        plain = CheckpointManifest.new(epoch, epoch)
        self.store.save(msgspec.structs.replace(plain, **settings | changes))
        if is_committed:
            self._write(f"commits/{epoch - 1}", COMMIT)

    def lose_workdir(self) -> None:
        shutil.rmtree(self.workdir.path)

    def _plan(self, batch: int) -> None:
        self.workdir.make(WorkdirOwner("orders", self.store.objects.address))
        self._write("metadata", f'{{"id":"{self.query_id}"}}')
        self._write(f"offsets/{batch}", OFFSETS % (batch + 1))

    def _write(self, name: str, text: str) -> None:
        path = self.workdir.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def _capture(self, epoch: int) -> BatchObject:
        batcher = CheckpointBatcher(str(self.root))
        for name in ("metadata", f"offsets/{epoch - 2}", f"offsets/{epoch - 1}", f"commits/{epoch - 2}"):
            if (self.workdir.path / name).exists():
                batcher.add(name, (self.workdir.path / name).read_bytes())
        flushed = batcher.flush(epoch)
        assert isinstance(flushed, BatchObject)
        return flushed
