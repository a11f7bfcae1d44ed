"""What the verbs on projections say alike, in words and as JSON. All pure."""

from __future__ import annotations

from typing import Any

from holdfast.cli import wording
from holdfast.cli.output import Cell
from holdfast.cli.projections_seen import SeenProjection
from holdfast.cli.sources_positions import cut
from holdfast.projections.state import ProjectionState
from holdfast.projections.worker_lease import WorkerLeaseRecord

HOLDER = 80


def known(number: int | None) -> Cell:
    """A number, or that nobody knows it: never a 0 in its place."""
    return Cell("unknown", "doubtful") if number is None else Cell(wording.number(number))


def worker(seen: SeenProjection, now_ms: int) -> Cell:
    """Who works on a projection, as far as its lease tells."""
    lease = seen.lease
    if lease is None or not lease.until_ms:
        return Cell("nobody", "faint")
    holder = cut(lease.holder, HOLDER)
    if seen.holder(now_ms) is None:
        return Cell(f"{holder}, until its lease ran out {wording.age(lease.until_ms, now_ms)}", "doubtful")
    return Cell(holder)


def lease_json(lease: WorkerLeaseRecord | None, now_ms: int) -> dict[str, Any] | None:
    if lease is None or not lease.until_ms:
        return None
    return {"holder": lease.holder, "until_ms": lease.until_ms, "is_held": lease.until_ms > now_ms}


def rebuild_json(rebuild: ProjectionState | None) -> dict[str, Any] | None:
    if rebuild is None:
        return None
    return {
        "version": rebuild.version,
        "position": rebuild.position,
        "until": rebuild.until,
        "updated_ms": rebuild.updated_ms,
    }
