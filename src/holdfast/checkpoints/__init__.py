"""Pipeline checkpoints: manifests, sidecars and batches; validation, retention, lease and the recovery walk."""

from holdfast.checkpoints.batcher import BatchMetrics, CheckpointBatcher, read_batch
from holdfast.checkpoints.cleanup import CleanupPlan
from holdfast.checkpoints.lease import Lease
from holdfast.checkpoints.open import open_store
from holdfast.checkpoints.recovery_walk import RecoveryReport
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.validate import ValidationResult

__all__ = [
    "BatchMetrics",
    "CheckpointBatcher",
    "CheckpointStore",
    "CleanupPlan",
    "Lease",
    "RecoveryReport",
    "ValidationResult",
    "open_store",
    "read_batch",
]
