"""The heartbeat of a store's driver: one small object beside the lease, and what it says about the driver.

The driver rewrites it every `EVERY` seconds, from a thread of its own, and once more when it ends. It is a hint for
people who ask whether a pipeline runs. No decision rests on it: a driver is fenced by the lease alone.

Clocks. The age of a heartbeat is the reader's clock minus the time that the store itself noted for the object, so the
driver's clock does not matter. A driver counts as dead after `DEAD_AFTER` seconds. A live one is at most `EVERY`
seconds and one request old, so it is never taken for dead while the reader's clock is less than `DEAD_AFTER - EVERY`
seconds ahead of the store's. A reader whose clock is behind sees a death that much later.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.checkpoints.lease import FOLDER, LeaseRecord, current
from holdfast.errors import Corrupt, NotFound
from holdfast.storage.objects.store import ObjectStore

KEY = f"{FOLDER}heartbeat.json"
EVERY = 15.0
DEAD_AFTER = 60.0
_LIMIT = 1 << 16

RunState = Literal["running", "stopped", "failed"]
"""What a driver says of itself."""

DriverState = Literal["running", "stopped", "failed", "dead", "fenced", "unknown"]
"""What is known of it from outside. `unknown`: its release writes no heartbeat, or it has not written its first one."""


class Heartbeat(msgspec.Struct, frozen=True):
    """The last sign of life of a driver."""

    generation: int
    owner: str
    started_ms: int
    state: RunState
    at_ms: int
    """By the driver's own clock."""
    reason: str | None = None
    """The code of the error that ended it, or the name of its class."""


class DriverStatus(msgspec.Struct, frozen=True):
    """The driver of a pipeline, seen from outside."""

    state: DriverState
    owner: str
    generation: int
    started_ms: int | None
    holdfast: str | None
    seen_ms: int | None
    """When its last sign of life was written, by the store's clock; None without one."""
    reason: str | None = None
    taken_over_by: LeaseRecord | None = None

    def as_json(self) -> dict[str, Any]:
        by = self.taken_over_by
        return msgspec.structs.asdict(self) | {"taken_over_by": by.generation if by else None}


def beat(objects: ObjectStore, heartbeat: Heartbeat, *, is_first: bool = True) -> bool:
    """Write a sign of life; False if a newer generation has left one. A hint: it may be lost in a power cut.

    Only the first one of a driver makes the object: a store that was removed meanwhile stays removed.
    """

    def change(body: bytes | None) -> bytes | None:
        if body is None and not is_first:
            return None
        found = _decode(body) if body is not None else None
        return None if found and found.generation > heartbeat.generation else msgspec.json.encode(heartbeat)

    return objects.update(KEY, change, limit=_LIMIT, is_hint=True)


def read_heartbeat(objects: ObjectStore) -> tuple[Heartbeat, float] | None:
    """The last sign of life, and when it was written by the store's clock. None if there is none, or a damaged one."""
    info = objects.info(KEY)
    try:
        found = _decode(objects.read(KEY, limit=_LIMIT)) if info else None
    except (NotFound, Corrupt):
        return None
    return (found, info.modified) if found and info else None


def observe_driver(objects: ObjectStore, now: float) -> tuple[LeaseRecord | None, DriverStatus | None]:
    """The newest claim and its driver's status; None for a store that was never claimed."""
    lease = current(objects)
    return lease, judge_driver(lease, read_heartbeat(objects), now) if lease else None


def judge_driver(lease: LeaseRecord, last: tuple[Heartbeat, float] | None, now: float) -> DriverStatus:
    """The status of a driver from the newest claim and the last heartbeat. Pure.

    A driver that had ended by itself before the newest claim was not fenced by it.
    """
    if last is None or (last[0].generation < lease.generation and last[0].state != "running"):
        return DriverStatus("unknown", lease.owner, lease.generation, lease.started_ms, lease.holdfast, None)
    heartbeat, modified = last
    state: DriverState = heartbeat.state
    if heartbeat.generation < lease.generation:
        state = "fenced"
    elif state == "running" and now - modified > DEAD_AFTER:
        state = "dead"
    return DriverStatus(
        state,
        heartbeat.owner,
        heartbeat.generation,
        heartbeat.started_ms,
        None if state == "fenced" else lease.holdfast,
        int(modified * 1000),
        heartbeat.reason,
        lease if state == "fenced" else None,
    )


def _decode(body: bytes) -> Heartbeat | None:
    try:
        return json_decoder(Heartbeat).decode(body)
    except msgspec.MsgspecError:
        return None
