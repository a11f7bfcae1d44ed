"""Holdfast makes the progress of PySpark streaming pipelines durable, verifiable and exact."""

from holdfast.checkpoints import CheckpointBatcher, CheckpointStore, RecoveryReport, ValidationResult, open_store
from holdfast.checkpoints.manifest import (
    BatchObject,
    CheckpointManifest,
    ConnectorCheckpoint,
    InFlightRecord,
    OperatorCheckpoint,
    SinkCommitStatus,
)
from holdfast.index import open_index

__version__ = "0.1.0"

__all__ = [
    "BatchObject",
    "CheckpointBatcher",
    "CheckpointManifest",
    "CheckpointStore",
    "ConnectorCheckpoint",
    "InFlightRecord",
    "OperatorCheckpoint",
    "RecoveryReport",
    "SinkCommitStatus",
    "ValidationResult",
    "open_index",
    "open_store",
]
