"""The manifest of one epoch, put together from what each part has to say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.checkpoints.manifest import (
    FORMAT_VERSION,
    BatchObject,
    CheckpointManifest,
    ConnectorCheckpoint,
    HoldfastSection,
    InFlightRecord,
    SinkCommitStatus,
    SinkStatus,
)
from holdfast.checkpoints.operator_state import encode
from holdfast.sinks import Descriptor


class EpochFacts(msgspec.Struct, frozen=True):
    """What is known of an epoch before anything is staged: where it reads from and under which rules."""

    epoch: int
    batch_id: int
    lineage: int
    sources: dict[str, ConnectorCheckpoint]
    tables: dict[str, ConnectorCheckpoint]
    ranges: dict[str, list[InFlightRecord]]
    """Per source the exact offsets of this batch: until Spark counts it as done, it may have to be run again."""
    watermark: int | None
    pipeline_hash: int
    workdir: str
    state_partitions: int
    vnode_count: int
    runtime: dict[str, Any]
    positions: dict[str, str | None] = {}
    """Per source where this batch ends, as Spark's log has it."""


class Holding(msgspec.Struct, frozen=True):
    """Where an epoch's files are: written by this checkpoint, or by earlier ones that are still needed."""

    batches: list[BatchObject]
    inherited: list[BatchObject]


def epoch_manifest(
    facts: EpochFacts,
    *,
    checkpoint_id: int,
    timestamp_ms: int,
    parent: CheckpointManifest | None,
    holding: Holding,
    operators: Mapping[str, bytes],
    descriptors: Mapping[str, Descriptor],
) -> tuple[CheckpointManifest, list[bytes]]:
    """The manifest with every sink pending, and the chunks of its sidecar."""
    states = encode(operators)
    before = parent.sink_epochs if parent else {}
    is_child = bool(holding.inherited) and parent is not None
    manifest = CheckpointManifest(
        version=FORMAT_VERSION,
        checkpoint_id=checkpoint_id,
        epoch=facts.epoch,
        timestamp_ms=timestamp_ms,
        source_offsets=facts.sources,
        table_offsets=facts.tables,
        sink_epochs={name: before[name] for name in descriptors if name in before},
        sink_commit_statuses={name: SinkCommitStatus.pending() for name in descriptors},
        operator_states=states.operators,
        table_store_checkpoint_path=facts.workdir,
        wal_position=facts.batch_id,
        per_core_wal_positions=[facts.batch_id] * facts.state_partitions,
        watermark=facts.watermark,
        source_names=sorted(facts.sources),
        sink_names=sorted(descriptors),
        pipeline_hash=facts.pipeline_hash,
        inflight_data=facts.ranges,
        is_incremental=is_child,
        parent_id=parent.checkpoint_id if is_child and parent else None,
        vnode_count=facts.vnode_count,
        holdfast=HoldfastSection(
            lineage=facts.lineage,
            batches=holding.batches,
            inherited=holding.inherited,
            sinks=dict(descriptors),
            runtime=facts.runtime,
        ),
    )
    return manifest, states.chunks


def with_statuses(manifest: CheckpointManifest, outcomes: Mapping[str, SinkStatus]) -> CheckpointManifest:
    """The manifest after some sinks have committed or refused; what they say is never taken back."""
    statuses = {**manifest.sink_commit_statuses, **outcomes}
    committed = {name: manifest.epoch for name, status in statuses.items() if status == SinkCommitStatus.committed()}
    return msgspec.structs.replace(
        manifest, sink_commit_statuses=statuses, sink_epochs={**manifest.sink_epochs, **committed}
    )


def connector_checkpoint(end: str | None, *, connector: str, epoch: int) -> ConnectorCheckpoint:
    """One source's end offset as the manifest keeps it: a string per partition, and Spark's own text beside it.

    Kafka's `{"topic": {"0": 5}}` becomes `topic-0: 5`; other JSON is flattened with dots; a bare value is `offset`.
    """
    metadata = {"connector": connector}
    if end is None:
        return ConnectorCheckpoint({}, epoch, metadata)
    try:
        value = msgspec.json.decode(end)
    except (msgspec.DecodeError, RecursionError):
        value = end  # a source may print anything
    if value is None:
        value = end
    separator = "-" if connector.lower().startswith("kafka") else "."
    offsets = dict(_flattened(value, separator)) if isinstance(value, dict) and value else {"offset": _text(value)}
    return ConnectorCheckpoint(offsets, epoch, {**metadata, "spark_offset": end})


def _flattened(value: dict[str, Any], separator: str, prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict) and inner:
            found += _flattened(inner, separator, f"{name}{separator}")
        else:
            found.append((name, _text(inner)))
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
