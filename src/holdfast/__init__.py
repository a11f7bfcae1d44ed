"""Holdfast makes the progress of PySpark streaming pipelines durable, verifiable and exact."""

from holdfast.base.version import VERSION
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

__version__ = VERSION

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


def __dir__() -> list[str]:
    """The public names alone: what a shell offers for completion."""
    return [*__all__, "__version__", "errors"]
