"""The lease of a store: a generation number that rises with every claim. The newest claimant may write.

A claim is the conditional creation of the next numbered object, so of two claimants one wins each number.
A holder that finds a higher number than its own has been taken over and stops.

How often a pipeline checks its lease. Two checks happen in every epoch:

- at the start of the epoch, so that a driver that was taken over stops before it computes anything;
- after the decision. This check is needed: a successor that claimed before the decision may have removed the staged
  output of some sinks, so only the successor can still give every sink the same rows.

The steps in between check only if the last check is older than a second (`recheck_after`). They are safe without one,
because all of them are conditional writes. A batch object or a sidecar never replaces another, and counts only once a
manifest lists it. The manifest is created under the id after the newest one. As long as that id is free, no successor
has saved anything, so none has removed what this checkpoint inherits; once it is taken, the creation fails. An update
only moves sink statuses forward. None of this holds for ids with gaps: such a writer checks before every step. Nor does
it hold once a successor has saved so many checkpoints that the id is pruned and free again: no pipeline does that
within a second, and the second also counts while the machine is suspended.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.base.version import VERSION
from holdfast.checkpoints.conditional_writes import check_once
from holdfast.errors import Conflict, Corrupt, Fenced, HoldfastError, NotFound, Unavailable
from holdfast.storage.objects.store import Listing, ObjectStore

FOLDER = "lease/"
KEPT_GENERATIONS = 8
_NAME = re.compile(r"lease/generation-(\d{20})\.json")


def _seconds() -> float:
    """Seconds since the machine started, including time suspended where the system counts it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseRecord(msgspec.Struct, frozen=True):
    """Who claimed a generation and when. Shown to people; nothing depends on it.

    Records of earlier releases have only the first three fields.
    """

    generation: int
    owner: str
    claimed_ms: int
    host: str | None = None
    process: int | None = None
    started_ms: int | None = None
    """When this driver first claimed the store. Its restarts are generations of the same driver."""
    holdfast: str | None = None
    """The version of Holdfast."""

    @property
    def since(self) -> str | None:
        """When this driver began, as a time in UTC; None if the record does not say."""
        milliseconds = self.started_ms or self.claimed_ms
        try:
            began = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        except OverflowError:
            return None
        return f"{began:%Y-%m-%dT%H:%M:%SZ}" if milliseconds > 0 else None

    def is_same_driver(self, other: LeaseRecord) -> bool:
        """Whether both were claimed by one driver. The start time counts: in containers process ids repeat."""
        mine, others = ((one.host, one.process, one.started_ms) for one in (self, other))
        return None not in mine and mine == others


class Lease:
    """One claim on one store."""

    def __init__(
        self,
        objects: ObjectStore,
        record: LeaseRecord,
        predecessor: LeaseRecord | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._objects = objects
        self._clock = clock or _seconds
        self._checked = self._clock()
        self.record = record
        self.predecessor = predecessor
        """The claim before this one, None if this is the first."""

    def __repr__(self) -> str:
        return f"Lease(generation={self.generation}, owner={self.record.owner!r})"

    @property
    def generation(self) -> int:
        return self.record.generation

    def through(self, objects: ObjectStore) -> Lease:
        """The same claim, checked through another handle on the store: for another thread."""
        return Lease(objects, self.record, self.predecessor, clock=self._clock)

    def check(self, *, unless_within: float = 0.0) -> None:
        """Raise `Fenced` if another claim came since. A check is one listing.

        Does nothing if the last check was less than `unless_within` seconds ago.

        Does not guarantee: that no claim comes a moment later. Every write that must not happen twice is itself
        conditional; this check stops a stale holder early and says why.
        """
        now = self._clock()
        if now - self._checked < unless_within:
            return
        newest = max(_generations(self._objects.list(FOLDER)), default=0)
        if newest > self.generation:
            raise Fenced(
                f"{self._objects.address} was taken over by {_described(_read(self._objects, newest))}; "
                f"this writer has generation {self.generation}.",
                code="lease.lost",
                about=self._objects.address,
                unchanged="the store; nothing of this step was written",
                next_step="stop this process; the other one goes on",
            )
        self._checked = now


def claim(
    objects: ObjectStore, *, owner: str | None, clock: Callable[[], float], earlier: LeaseRecord | None = None
) -> Lease:
    """Take the store over: generation + 1, durable on return. `earlier` is an earlier claim of the same driver.

    Guarantees: no two claims ever have the same generation, in any process, also after a crash.
    `Invalid` if the store's service does not enforce conditional writes; the first claim finds out.
    """
    host, process = socket.gethostname(), os.getpid()
    for _ in range(100):
        listing = objects.list(FOLDER)
        now = clock()
        check_once(objects, FOLDER, listing, now=now)
        generations = _generations(listing)
        newest = max(generations, default=0)
        predecessor = _read(objects, newest) if newest else None
        now_ms = int(now * 1000)
        record = LeaseRecord(
            newest + 1,
            owner or f"{host}:{process}",
            now_ms,
            host,
            process,
            (earlier and earlier.started_ms) or now_ms,
            VERSION,
        )
        try:
            with step("lease.claim", generation=record.generation):
                objects.create(_key(record.generation), [msgspec.json.encode(record)])
        except Conflict:
            continue
        superseded = sorted(generations)[:-KEPT_GENERATIONS]
        with contextlib.suppress(HoldfastError):  # the claim stands; a later one removes them
            objects.delete([_key(generation) for generation in superseded])
        return Lease(objects, record, predecessor)
    raise Unavailable(
        f"Could not claim {objects.address}: others kept claiming it.",
        code="lease.contended",
        about=objects.address,
        next_step=f"see which driver has it: holdfast status {objects.address}",
    )


def current(objects: ObjectStore) -> LeaseRecord | None:
    """The newest claim, None if the store was never claimed."""
    newest = max(_generations(objects.list(FOLDER)), default=0)
    return _read(objects, newest) if newest else None


def _generations(listing: Listing) -> list[int]:
    found = (_NAME.fullmatch(info.key) for info in listing)
    return [int(match[1]) for match in found if match]


def _key(generation: int) -> str:
    return f"{FOLDER}generation-{generation:020}.json"


def _read(objects: ObjectStore, generation: int) -> LeaseRecord:
    try:
        return json_decoder(LeaseRecord).decode(objects.read(_key(generation), limit=1 << 16))
    except (NotFound, Corrupt, msgspec.MsgspecError):
        return LeaseRecord(generation, "an unknown owner", 0)


def _described(record: LeaseRecord) -> str:
    """A claim for a message: who, since when, and its generation."""
    since = f", running since {record.since}" if record.since else ""
    version = f", Holdfast {record.holdfast}" if record.holdfast else ""
    return f"{record.owner}{since} (generation {record.generation}{version})"
