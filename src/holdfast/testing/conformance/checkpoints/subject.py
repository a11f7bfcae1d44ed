"""The checkpoint store under test, raw access to the objects below it, and manifests to save."""

from __future__ import annotations

import functools
import json
import time
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.checkpoints.layout import Layout
from holdfast.checkpoints.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    InFlightRecord,
    OperatorCheckpoint,
    SinkCommitStatus,
)
from holdfast.checkpoints.store import CheckpointStore
from holdfast.storage.objects.store import ObjectStore

CREATED_MS = 1_760_000_000_000
READ_LIMIT = 1 << 28


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities in which object stores differ. Declared, so that no test has to be skipped."""

    leftovers: bool
    """An interrupted write leaves something that `ObjectStore.leftovers` shows."""


class StoreUnderTest:
    """One store, opened as often as a test needs; every `open` is a new handle on the same store."""

    layout: Layout
    abilities: Abilities

    def open(self, **options: Any) -> CheckpointStore:
        """A new handle on the store under test. Options are those of `holdfast.open_store`."""
        raise NotImplementedError

    def open_beside(self, **options: Any) -> CheckpointStore:
        """A handle on another, empty store; preferably one whose address begins with that of the store under test."""
        raise NotImplementedError

    def open_objects(self) -> ObjectStore:
        """A new raw handle on the object store below the checkpoint store."""
        raise NotImplementedError

    @functools.cached_property
    def objects(self) -> ObjectStore:
        """The objects of the store under test, without going through it."""
        return self.open_objects()

    def all_keys(self) -> list[str]:
        return [info.key for info in self.objects.list("")]

    def read(self, key: str) -> bytes:
        return self.objects.read(key, limit=READ_LIMIT)

    def overwrite(self, key: str, body: bytes) -> None:
        assert self.objects.update(key, lambda _: body)

    def manifest_key(self, checkpoint_id: int) -> str:
        return self.layout.manifest_key(checkpoint_id)

    def sidecar_key(self, checkpoint_id: int) -> str:
        return self.layout.sidecar_key(checkpoint_id)

    def document(self, checkpoint_id: int) -> dict[str, Any]:
        """A stored manifest as plain JSON."""
        found: dict[str, Any] = json.loads(self.read(self.manifest_key(checkpoint_id)))
        return found

    def plant(self, checkpoint_id: int, /, *, sidecar: bytes | None = None, **fields: Any) -> None:
        """Store a manifest as a foreign writer would: the four mandatory fields and `fields`, no `holdfast` section."""
        plain = {"version": 1, "checkpoint_id": checkpoint_id, "epoch": checkpoint_id, "timestamp_ms": CREATED_MS}
        self.overwrite(self.manifest_key(checkpoint_id), json.dumps(plain | fields, indent=2).encode())
        if sidecar is not None:
            self.overwrite(self.sidecar_key(checkpoint_id), sidecar)

    def damage(self, key: str) -> None:
        """Flip one bit in the middle of an object."""
        body = bytearray(self.read(key))
        body[len(body) // 2] ^= 1
        self.overwrite(key, bytes(body))

    def open_later(self, seconds: float = 7200.0, **options: Any) -> CheckpointStore:
        """A handle whose clock is ahead by this many seconds, so that every object looks that old."""
        return self.open(clock=lambda: time.time() + seconds, **options)


def manifest(checkpoint_id: int, **fields: Any) -> CheckpointManifest:
    """A small manifest; its epoch is `checkpoint_id` unless `fields` has one."""
    epoch = fields.pop("epoch", checkpoint_id)
    return replace(CheckpointManifest.new(checkpoint_id, epoch, timestamp_ms=CREATED_MS), **fields)


def pending(checkpoint_id: int, **fields: Any) -> CheckpointManifest:
    """A checkpoint whose one sink has not committed yet."""
    return manifest(checkpoint_id, sink_commit_statuses={"out": SinkCommitStatus.pending()}, **fields)


def failed(checkpoint_id: int, why: str = "table is gone") -> CheckpointManifest:
    return manifest(checkpoint_id, sink_commit_statuses={"out": SinkCommitStatus.failed(why)})


def settled(found: CheckpointManifest) -> CheckpointManifest:
    """The same manifest with every sink committed."""
    return replace(
        found, sink_commit_statuses={name: SinkCommitStatus.committed() for name in found.sink_commit_statuses}
    )


def with_everything(checkpoint_id: int) -> CheckpointManifest:
    """A manifest in which every field that a caller fills in differs from its default."""
    return manifest(
        checkpoint_id,
        source_offsets={"orders": ConnectorCheckpoint({"p0": "17", "p1": "4"}, 3, {"connector": "kafka"})},
        sink_epochs={"lake": 3, "pg": 2},
        sink_commit_statuses={
            "lake": SinkCommitStatus.committed(),
            "pg": SinkCommitStatus.pending(),
            "log": SinkCommitStatus.failed("no route to host"),
        },
        table_offsets={"customers": ConnectorCheckpoint({"version": "9"}, 1)},
        operator_states={"dedup": OperatorCheckpoint.inline(b"\x00\xffsmall")},
        table_store_checkpoint_path="/data/spark/checkpoint",
        wal_position=41,
        per_core_wal_positions=[7, 0, 2**40],
        watermark=-5,
        source_watermarks={"orders": 1_700_000_000_000},
        source_names=["orders"],
        sink_names=["lake", "log", "pg"],
        pipeline_hash=2**64 - 1,
        inflight_data={"join": [InFlightRecord(1, "AAE="), InFlightRecord(2, "")]},
        vnode_count=64,
    )
