"""Who took the pipeline over from whom, for people."""

from __future__ import annotations

import contextlib
import logging

from holdfast.checkpoints import CheckpointStore, Lease
from holdfast.checkpoints.heartbeat import DEAD_AFTER, Heartbeat, read_heartbeat
from holdfast.checkpoints.lease import LeaseRecord
from holdfast.errors import HoldfastError
from holdfast.pipeline.reports import Notice, tell

log = logging.getLogger("holdfast.spark")


def announce_takeover(store: CheckpointStore, lease: Lease, pipeline: str) -> None:
    last = None
    with contextlib.suppress(HoldfastError):  # only a word less is said
        last = read_heartbeat(store.objects)
    if found := takeover(lease, last):
        text, is_alive = found
        log.log(logging.WARNING if is_alive else logging.INFO, "%s: %s", pipeline, text, extra={"is_told": True})
        tell(Notice(pipeline, text, "warning" if is_alive else "info"))


def takeover(lease: Lease, last: tuple[Heartbeat, float] | None) -> tuple[str, bool] | None:
    """From whom a claim took the pipeline, for people, and whether that driver is at work. Pure.

    None if there was no other driver, or if it had ended by itself.
    """
    before: LeaseRecord | None = lease.predecessor
    if before is None or before.is_same_driver(lease.record):
        return None
    since = f", running since {before.since}" if before.since else ""
    text = f"took over from {before.owner}{since} (generation {before.generation})"
    if last is None or last[0].generation != before.generation:
        return text, False
    heartbeat, modified = last
    if heartbeat.state != "running":
        return None
    age = lease.record.claimed_ms / 1000 - modified
    if age > DEAD_AFTER:
        return f"{text}, which gave its last sign of life {age:,.0f} s before", False
    return f"{text}, which was alive: it is fenced now, and stops", True
