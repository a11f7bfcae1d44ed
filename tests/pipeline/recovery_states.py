"""What a start may find: checkpoints, workdirs, sinks; and the plan that is made of it."""

from __future__ import annotations

from typing import Any

from holdfast import SinkCommitStatus
from holdfast.checkpoints.manifest import CheckpointManifest, HoldfastSection
from holdfast.pipeline.recovery_plan import Observation, PipelineSpec, RecoveryPlan, WorkdirState, plan_recovery
from holdfast.sinks import SinkProgress
from holdfast.testing.conformance.checkpoints.subject import manifest

PENDING, COMMITTED, FAILED = SinkCommitStatus.pending(), SinkCommitStatus.committed(), SinkCommitStatus.failed("full")
STORE = "s3://bucket/shop"
WANTED = PipelineSpec("shop", 77, frozenset({"orders"}), frozenset({"lake", "pg"}))
EMPTY = WorkdirState("/data/work")


def checkpoint(epoch: int = 6, *, lineage: int = 0, runtime: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Checkpoint 20 of epoch 6, batch 5, both sinks committed, unless told otherwise."""
    given: dict[str, Any] = {
        "wal_position": epoch - 1,
        "source_names": ["orders"],
        "sink_names": ["lake", "pg"],
        "sink_commit_statuses": {"lake": COMMITTED, "pg": COMMITTED},
        "sink_epochs": {"lake": epoch, "pg": epoch},
        "pipeline_hash": 77,
        "holdfast": HoldfastSection(
            lineage=lineage,
            runtime={"pipeline": "shop", "query_id": "q-1", "spark": "4.3.0"} if runtime is None else runtime,
        ),
    }
    return manifest(20, epoch=epoch, **(given | fields))


def workdir(planned: int, committed: int, **fields: Any) -> WorkdirState:
    given: dict[str, Any] = {"is_empty": False, "pipeline": "shop", "query_id": "q-1"}
    return WorkdirState("/data/work", planned=planned, committed=committed, **(given | fields))


def plan(
    newest: CheckpointManifest | None, seen: WorkdirState, wanted: PipelineSpec = WANTED, **sinks: SinkProgress
) -> RecoveryPlan:
    return plan_recovery(Observation(STORE, newest, seen, [], sinks), wanted)


def wanted(**fields: Any) -> PipelineSpec:
    given = {name: getattr(WANTED, name) for name in WANTED.__struct_fields__}
    return PipelineSpec(**(given | fields))
