"""Who may write: a generation that rises with every claim.

A claim is the conditional creation of the next numbered object, so of two claimants one wins each number.
A holder that finds a higher number than its own has been taken over and stops.

How often a pipeline looks. Two looks per epoch always happen:

- at the start of the epoch, so that a driver that was taken over stops before it computes anything;
- after the decision. This one is needed: a successor that claimed before the decision may have removed what some sinks
  had staged, so only the successor can still give every sink the same rows.

The steps in between look only if the last look is older than a second (`recheck_after`), because they are safe without:
all of them are conditional writes. A batch object or a sidecar never replaces another, and counts only once a manifest
lists it. The manifest is created under the id after the newest one. As long as that id is free, no successor has saved
anything, so none has removed what this checkpoint inherits; once it is taken, the creation fails. An update only moves
sink statuses forward. None of this holds for ids with gaps: such a writer looks before every step. Nor does it hold
once a successor has saved so many checkpoints that the id is pruned and free again: no pipeline does that within a
second, and the second also counts while the machine is suspended.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, Fenced, NotFound, Unavailable
from holdfast.storage.objects.store import ObjectStore

FOLDER = "lease/"
KEPT_GENERATIONS = 8
_NAME = re.compile(r"lease/generation-(\d{20})\.json")


def _seconds() -> float:
    """Since the machine started, also while it was suspended, where the system can tell."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseRecord(msgspec.Struct, frozen=True):
    """Who claimed a generation and when. Shown to people; nothing depends on it."""

    generation: int
    owner: str
    claimed_ms: int


class Lease:
    """One claim on one store."""

    def __init__(self, objects: ObjectStore, record: LeaseRecord, *, clock: Callable[[], float] | None = None) -> None:
        self._objects = objects
        self._clock = clock or _seconds
        self._checked = self._clock()
        self.record = record

    def __repr__(self) -> str:
        return f"Lease(generation={self.generation}, owner={self.record.owner!r})"

    @property
    def generation(self) -> int:
        return self.record.generation

    def check(self, *, unless_within: float = 0.0) -> None:
        """Raise `Fenced` if another claim came since. A check is one listing.

        Does nothing if the last check was less than `unless_within` seconds ago.

        Does not guarantee: that no claim comes a moment later. Every write that must not happen twice is itself
        conditional; this check stops a stale holder early and says why.
        """
        now = self._clock()
        if now - self._checked < unless_within:
            return
        newest = max(_generations(self._objects), default=0)
        if newest > self.generation:
            raise Fenced(
                f"{self._objects.address} was taken over: generation {newest} {_holder(self._objects, newest)}, "
                f"this writer has generation {self.generation}.",
                code="lease.lost",
                about=self._objects.address,
                unchanged="the store; nothing of this step was written",
                next_step="stop this process; the other one goes on",
            )
        self._checked = now


def claim(objects: ObjectStore, *, owner: str | None, clock: Callable[[], float]) -> Lease:
    """Take the store over: generation + 1, durable on return.

    Guarantees: no two claims ever have the same generation, in any process, also after a crash.
    """
    owner = owner or f"{socket.gethostname()}:{os.getpid()}"
    for _ in range(100):
        generations = _generations(objects)
        record = LeaseRecord(max(generations, default=0) + 1, owner, int(clock() * 1000))
        try:
            with step("lease.claim", generation=record.generation):
                objects.create(_key(record.generation), [msgspec.json.encode(record)])
        except Conflict:
            continue
        superseded = sorted(generations)[:-KEPT_GENERATIONS]
        objects.delete([_key(generation) for generation in superseded])
        return Lease(objects, record)
    raise Unavailable(
        f"Could not claim {objects.address}: others kept claiming it.",
        code="lease.contended",
        about=objects.address,
        next_step="see which drivers are running for this pipeline",
    )


def current(objects: ObjectStore) -> LeaseRecord | None:
    """The newest claim, None if the store was never claimed."""
    newest = max(_generations(objects), default=0)
    return _read(objects, newest) if newest else None


def _generations(objects: ObjectStore) -> list[int]:
    found = (_NAME.fullmatch(info.key) for info in objects.list(FOLDER))
    return [int(match[1]) for match in found if match]


def _key(generation: int) -> str:
    return f"{FOLDER}generation-{generation:020}.json"


def _read(objects: ObjectStore, generation: int) -> LeaseRecord:
    try:
        return json_decoder(LeaseRecord).decode(objects.read(_key(generation), limit=1 << 16))
    except (NotFound, Corrupt, msgspec.MsgspecError):
        return LeaseRecord(generation, "an unknown owner", 0)


def _holder(objects: ObjectStore, generation: int) -> str:
    return f"was claimed by {_read(objects, generation).owner}"
