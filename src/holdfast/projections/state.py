"""The state record of a projection: its version, its build, and the position up to which all events are in it."""

from __future__ import annotations

import msgspec

from holdfast.errors import Conflict
from holdfast.projections import keys
from holdfast.projections.keys import check_name
from holdfast.storage.kv import errors
from holdfast.storage.kv.store import Reader, Transaction

Reading = Reader | Transaction


def begin(kv: Reader) -> Transaction:
    """A transaction. `Invalid` if the store was opened read-only."""
    if not hasattr(kv, "begin"):
        raise errors.read_only("store", kv.address)
    transaction: Transaction = kv.begin()
    return transaction


class FailedEvent(msgspec.Struct, frozen=True):
    """The event at which a projection waits because its handler failed."""

    position: int
    attempts: int
    """How often it has failed, in whichever process."""
    retry_ms: int
    """The time of the next attempt, in milliseconds since 1970."""
    error: str


class ProjectionState(msgspec.Struct, frozen=True):
    """One record per projection, replaced by every commit, so that of two concurrent commits one gets `Conflict`."""

    version: int | None
    """The version of the projection that made the read model; None if nothing was made yet."""
    build: int
    """The number of this read model: each rebuild and each reset starts the next one."""
    position: int | None
    """All events up to it were handled. None: the cursors were set by hand, and no single position describes them."""
    revision: int
    """Rises with each commit."""
    updated_ms: int
    builds: int = 1
    """The highest build number ever used."""
    garbage: tuple[int, ...] = ()
    """Abandoned or replaced builds whose keys may not all be removed yet."""
    until: int | None = None
    """For a rebuild: stop at this position. None: the end of the log."""
    failed: FailedEvent | None = None
    """The event after `position`, if its handler failed and will be retried."""


class DeadLetter(msgspec.Struct, frozen=True):
    """An event that could not be handled, and why."""

    position: int
    stream: str
    sequence: int
    type: str
    error: str
    attempts: int
    when_ms: int


class BuildRef(msgspec.Struct, frozen=True):
    """Names the records of one build: of the live read model, or of a rebuild."""

    name: str
    escaped: bytes
    key: bytes
    """The key of the `ProjectionState`, in `meta`."""
    space: str
    prefix: bytes
    """The prefix of the cursors' keys, in that space."""

    @property
    def is_live(self) -> bool:
        return self.space == "cursors"


def live_build(name: str) -> BuildRef:
    escaped = check_name(name)
    return BuildRef(name, escaped, keys.STATES + escaped, "cursors", escaped + b"/")


def next_build(name: str, build: int) -> BuildRef:
    escaped = check_name(name)
    return BuildRef(name, escaped, keys.NEXT_STATES + escaped, "shadows", keys.of_build(escaped, build))


def read(reading: Reading, key: bytes, address: str) -> ProjectionState | None:
    value = reading.get("meta", key)
    return None if value is None else decode(key, value, address)


def decode(key: bytes, value: bytes, address: str) -> ProjectionState:
    name = key[2:].decode(errors="backslashreplace")
    return keys.unseal(key, value, ProjectionState, f"the state of projection {name[:200]!r}", address)


def check_unchanged(reading: Reading, ref: BuildRef, known: ProjectionState | None, address: str) -> None:
    """`Conflict` if the stored state is not `known`, because another commit for this projection came first."""
    if read(reading, ref.key, address) != known:
        raise Conflict(
            f"Projection {ref.name[:200]!r} was changed by another commit meanwhile.",
            code="projection.changed",
            about=f"projection {ref.name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="read its state again and continue from there",
        )
