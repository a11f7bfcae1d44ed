"""The status of a pipeline, read from its store alone: without Spark, its workdir or its sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.base.codec import converted
from holdfast.checkpoints.heartbeat import DriverStatus, observe_driver
from holdfast.checkpoints.lease import LeaseRecord
from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.checkpoints.recovery_walk import walk_back
from holdfast.errors import Corrupt, Unavailable
from holdfast.status.checkpoints import OpenedStore, stored_size

TRIES = 3


class SkippedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is newer than the one a pipeline would resume from, and why it cannot be used."""

    checkpoint_id: int
    reason: str
    is_unreadable: bool


class PipelineStatus(msgspec.Struct, frozen=True):
    """The newest usable checkpoint of a pipeline, its driver, and the newer checkpoints that cannot be used."""

    newest: CheckpointManifest | None
    """The newest checkpoint that passes the quick validation: manifest, presence and sizes."""
    size_bytes: int
    skipped: list[SkippedCheckpoint]
    lease: LeaseRecord | None
    driver: DriverStatus | None
    now_ms: int

    @property
    def pipeline(self) -> str | None:
        """The pipeline's name; None if no pipeline of Holdfast's wrote the checkpoint."""
        return pipeline_name(self.newest) if self.newest else None

    @property
    def guarantees(self) -> dict[str, str]:
        return guarantees(self.newest) if self.newest else {}

    @property
    def last_epoch(self) -> LastEpoch | None:
        return last_epoch(self.newest) if self.newest else None

    @property
    def owing(self) -> list[str]:
        """Sinks that do not have the newest epoch yet."""
        return list(self.newest.owed_sinks) if self.newest else []

    @property
    def exit_code(self) -> int:
        if any(one.is_unreadable for one in self.skipped):
            return Unavailable.exit_code
        return Corrupt.exit_code if self.skipped else 0

    def as_json(self) -> dict[str, Any]:
        newest = self.newest
        last = self.last_epoch
        return {
            "pipeline": self.pipeline,
            "now_ms": self.now_ms,
            "checkpoint": None if newest is None else self._checkpoint_json(newest),
            "lease": msgspec.to_builtins(self.lease),
            "driver": self.driver.as_json() if self.driver else None,
            "last_epoch": msgspec.to_builtins(last),
            "resume": None
            if newest is None
            else {
                "checkpoint_id": newest.checkpoint_id,
                "epoch": newest.epoch,
                "replayed_epoch": newest.epoch if self.pipeline else None,
                "next_epoch": newest.epoch + 1,
                "owing_sinks": self.owing,
            },
            "skipped": [
                {"checkpoint_id": one.checkpoint_id, "reason": one.reason, "unreadable": one.is_unreadable}
                for one in self.skipped
            ],
        }

    def _checkpoint_json(self, newest: CheckpointManifest) -> dict[str, Any]:
        return {
            "checkpoint_id": newest.checkpoint_id,
            "epoch": newest.epoch,
            "lineage": newest.own.lineage,
            "generation": newest.own.generation,
            "timestamp_ms": newest.timestamp_ms,
            "size_bytes": self.size_bytes,
            "watermark": newest.watermark,
            "source_watermarks": newest.source_watermarks,
            "source_offsets": {name: source.offsets for name, source in newest.source_offsets.items()},
            "table_offsets": {name: table.offsets for name, table in newest.table_offsets.items()},
            "sink_epochs": newest.sink_epochs,
            "sink_commit_statuses": msgspec.to_builtins(newest.sink_commit_statuses),
            "sink_guarantees": self.guarantees,
            "workdir": newest.table_store_checkpoint_path,
            "spark": _text(newest.own.runtime.get("spark")),
        }


class LastEpoch(msgspec.Struct, frozen=True):
    """Statistics of an epoch, recorded in the checkpoint of the next one."""

    epoch: int
    rows: int
    rows_per_second: float
    seconds: float
    lag: dict[str, str] = {}


def pipeline_name(manifest: CheckpointManifest) -> str | None:
    """The name of the pipeline that wrote a checkpoint; None if it was not one of Holdfast's."""
    return _text(manifest.own.runtime.get("pipeline"))


def guarantees(manifest: CheckpointManifest) -> dict[str, str]:
    """The guarantee of each sink."""
    return {str(name): str(kind) for name, kind in _mapping(manifest.own.runtime.get("guarantees")).items()}


def last_epoch(manifest: CheckpointManifest) -> LastEpoch | None:
    """Statistics of the last epoch that Spark counted as done; the checkpoint of the next epoch records them."""
    try:
        return converted(manifest.own.runtime.get("last_epoch") or None, LastEpoch)
    except msgspec.ValidationError:
        return None


def observe_pipeline(opened: OpenedStore, clock: Callable[[], float] = time.time) -> PipelineStatus:
    """Read the newest usable checkpoint, walking back past damaged ones, the lease and the driver's last heartbeat.

    Quick: checks manifests, and the presence and size of the objects they name. `status.verify` reads every byte.
    """
    for _ in range(TRIES):
        newest, skipped, is_certain = _newest_usable(opened)
        if is_certain:
            break
    size = stored_size(opened, newest, _manifest_bytes(opened, newest)) if newest else 0
    now = clock()
    lease, driver = observe_driver(opened.store.objects, now)
    return PipelineStatus(newest, size, skipped, lease, driver, int(now * 1000))


def _newest_usable(opened: OpenedStore) -> tuple[CheckpointManifest | None, list[SkippedCheckpoint], bool]:
    """The newest usable checkpoint, the skipped ones, and False if a running pipeline removed it meanwhile."""
    store = opened.store
    report = walk_back(store.list_ids(), store.validator(deep=False))
    newest = opened.catalog.load(report.chosen_id) if report.chosen_id is not None else None
    there = set(store.list_ids()) if report.skipped else set()
    skipped = [
        SkippedCheckpoint(number, why.removeprefix("could not be read: "), number in report.unreadable)
        for number, why in report.skipped
        if number in there  # else it was removed while it was being read
    ]
    return newest, skipped, newest is not None or bool(skipped) or not report.examined


def _manifest_bytes(opened: OpenedStore, newest: CheckpointManifest) -> int:
    """The size of the manifest if its writer did not record the checkpoint's size; else 0, as it is not needed."""
    key = opened.catalog.layout.manifest_key(newest.checkpoint_id)
    info = None if newest.size_bytes else opened.store.objects.info(key)
    return info.size if info else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
