"""The facts of an epoch, read from Spark's offset log, and the manifest made from them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.checkpoints.manifest import (
    FORMAT_VERSION,
    CheckpointManifest,
    ConnectorCheckpoint,
    HoldfastSection,
    InFlightRecord,
    SinkCommitStatus,
    SinkStatus,
)
from holdfast.checkpoints.operator_state import encode
from holdfast.errors import Invalid
from holdfast.pipeline.definition import PreparedPipeline
from holdfast.pipeline.query.description import RECORDED
from holdfast.pipeline.workdir.snapshot import Snapshot
from holdfast.sinks import Descriptor
from holdfast.sparkdir.checkpoint import SparkCheckpoint
from holdfast.sparkdir.logs import PlannedBatch

ORDERED_SOURCES = 4
"""Version 2 of the offset log names its sources. Up to this many of them are in the order of the query."""


class EpochFacts(msgspec.Struct, frozen=True):
    """The facts of an epoch before anything is staged: its offsets, reference tables, watermark and settings."""

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
    vnode_count: int
    runtime: dict[str, Any]
    positions: dict[str, str | None] = {}
    """Per source the end offset of this batch, as text from Spark's log."""
    watermark_source: str | None = None
    """The source whose watermark `watermark` is; None if no source has one, or several have."""


def read_epoch_facts(
    spark_checkpoint: SparkCheckpoint,
    prepared: PreparedPipeline,
    *,
    batch_id: int,
    lineage: int,
    query_id: str,
    last_epoch: Mapping[str, Any],
) -> EpochFacts:
    """Read the facts of a batch that Spark has planned: from its offset log, and from the pipeline's definition.

    `last_epoch` is a summary of the epoch before, recorded with this one. `Corrupt` if the log cannot be read.
    """
    definition, sources = prepared.definition, prepared.query.sources
    marked = prepared.query.watermark_source
    planned = spark_checkpoint.planned(batch_id)
    before = spark_checkpoint.planned(batch_id - 1) if batch_id > 0 else None
    _check_sources(planned, len(sources), batch_id)
    epoch = batch_id + 1
    starts = before.ends if before else (None,) * len(sources)
    partitions = int(planned.settings.get("spark.sql.shuffle.partitions", 0))
    return EpochFacts(
        epoch=epoch,
        batch_id=batch_id,
        lineage=lineage,
        sources={
            source.name: connector_checkpoint(end, connector=source.connector, epoch=epoch)
            for source, end in zip(sources, planned.ends, strict=True)
        },
        tables={name: table.checkpoint(epoch) for name, table in definition.tables.items()},
        ranges={
            source.name: [_range(batch_id, start, end)]
            for source, start, end in zip(sources, starts, planned.ends, strict=True)
            if end is not None
        },
        positions={source.name: end for source, end in zip(sources, planned.ends, strict=True)},
        watermark=planned.watermark_ms or None,
        watermark_source=None if marked is None else sources[marked].name,
        pipeline_hash=prepared.pipeline_hash,
        workdir=definition.workdir.address,
        vnode_count=min(max(partitions, 1), 0xFFFF),
        runtime={
            "pipeline": definition.name,
            "spark": definition.frame.sparkSession.version,
            "query_id": query_id,
            "offset_log": planned.version,
            "sources": [source.name for source in sources],
            "output_mode": definition.output_mode,
            "guarantees": {name: named.sink.guarantee for name, named in definition.sinks.items()},
            "last_epoch": dict(last_epoch),
            RECORDED: prepared.description.recorded(planned.settings),
        },
    )


def _check_sources(planned: PlannedBatch, count: int, batch_id: int) -> None:
    """Refuse a log whose offsets cannot be matched with the sources of the query."""
    is_ordered = planned.version == 1 or count <= ORDERED_SOURCES
    if len(planned.ends) != count or not is_ordered:
        raise Invalid(
            f"Spark's log (version {planned.version}) names {len(planned.ends)} sources, the query has {count}: "
            "they cannot be told apart.",
            code="workdir.sources",
            about=f"offsets/{batch_id}",
            unchanged="every checkpoint and every sink",
            next_step="begin the pipeline without spark.sql.streaming.queryEvolution.enableSourceEvolution",
        )


def _range(batch_id: int, start: str | None, end: str) -> InFlightRecord:
    text = msgspec.json.encode({"start": start, "end": end})
    return InFlightRecord(batch_id, base64.b64encode(text).decode())


def epoch_manifest(
    facts: EpochFacts,
    *,
    checkpoint_id: int,
    timestamp_ms: int,
    parent: CheckpointManifest | None,
    snapshot: Snapshot,
    operators: Mapping[str, bytes],
    descriptors: Mapping[str, Descriptor],
) -> tuple[CheckpointManifest, list[bytes]]:
    """The manifest with every sink pending, and the chunks of its sidecar."""
    states = encode(operators)
    before = parent.sink_epochs if parent else {}
    is_child = bool(snapshot.inherited) and parent is not None
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
        per_core_wal_positions=snapshot.partition_versions,
        watermark=facts.watermark,
        source_watermarks=_source_watermarks(facts),
        source_names=sorted(facts.sources),
        sink_names=sorted(descriptors),
        pipeline_hash=facts.pipeline_hash,
        inflight_data=facts.ranges,
        is_incremental=is_child,
        parent_id=parent.checkpoint_id if is_child and parent else None,
        vnode_count=facts.vnode_count,
        holdfast=HoldfastSection(
            lineage=facts.lineage,
            batches=snapshot.batches,
            inherited=snapshot.inherited,
            live=snapshot.live,
            sinks=dict(descriptors),
            runtime=facts.runtime,
        ),
    )
    return manifest, states.chunks


def _source_watermarks(facts: EpochFacts) -> dict[str, int]:
    """The watermark of the only source that has one. Of several, Spark records nothing but the one it uses for all."""
    return {facts.watermark_source: facts.watermark} if facts.watermark_source and facts.watermark else {}


def with_statuses(manifest: CheckpointManifest, outcomes: Mapping[str, SinkStatus]) -> CheckpointManifest:
    """The manifest with the statuses of sinks that have committed or refused; other statuses stay."""
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
