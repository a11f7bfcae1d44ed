"""`ObjectStore`: keys to bytes with two conditional writes. Checkpoints, leases and the pointer are stored in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.storage.files.directory import NewFile
from holdfast.storage.files.disk import Bytes as Bytes
from holdfast.storage.files.disk import Chunks as Chunks

Change = Callable[[bytes | None], bytes | None]
"""A function of the current body (None: absent) that returns the new body, or None to leave the object as it is."""


UPDATE_LIMIT = 64 << 20
BEGINNING = 4096


class ObjectInfo(msgspec.Struct, frozen=True):
    """One stored object, as a listing shows it."""

    key: str
    size: int
    modified: float
    """Seconds since the Unix epoch, by the store's own clock."""
    version: str = ""
    """Another one for each body, where the service tells: the entity tag. It is not a checksum."""


Listing = list[ObjectInfo]


class ObjectStore(Protocol):
    """Keys to bytes. Every write is durable when it returns: synced or acknowledged.

    Keys are relative, `/`-separated and checked by `check_key`. All methods raise only errors of
    `holdfast.errors`; an absent object is `NotFound`.
    """

    visible_is_durable: bool
    """Whether everything that can be read survives a power cut, or only what was acknowledged. See `secure`."""

    looks_are_free: bool
    """Whether `info` costs next to nothing, or a request."""

    service: str | None
    """The service that has to enforce the conditions of writes, as text that tells it from any other; None where this
    process enforces them itself. See `check_conditions`."""

    @property
    def address(self) -> str:
        """Where this is, fit for messages: no credentials in it."""

    def create(self, key: str, chunks: Chunks) -> None:
        """Store a body under a key that does not exist yet.

        Guarantees: of any number of concurrent callers at most one succeeds, the others get `Conflict`;
        no reader ever sees part of the body; durable on return.
        After a `Conflict` the object that was found is durable, too.
        Does not guarantee: that a `Conflict` means another writer won. After a lost reply it may be our
        own write: compare the bodies.
        """

    def update(self, key: str, change: Change, *, limit: int = UPDATE_LIMIT, is_hint: bool = False) -> bool:
        """Replace one small object by a function of its current body; True if it was replaced.

        Of a body larger than `limit` the function sees only the beginning. It may be called several times, and must
        be pure and idempotent: two writers that put the same body there count as one.
        Guarantees: atomic against every other `update` of the same key, in any process; durable on return.
        A hint is not: a power cut may leave the old body, none, or one that makes no sense. Only for an object that
        every reader can do without.
        """

    def check_conditions(self, key: str) -> None:
        """Raise `Invalid` if the service takes a write whose condition does not hold.

        Some services and gateways ignore a condition that they do not know, and then two writers both believe that
        they won. Writes a few bytes under `key`, which no other writer may use, and removes them. A crash may leave
        them behind.
        """

    def secure(self, keys: Sequence[str]) -> None:
        """Make the objects under these keys durable: their writer may have died right after they became visible.

        Call it before building on an object of another writer. Absent keys are ignored.
        """

    def together(self) -> AbstractContextManager[None]:
        """Writes in this block become durable when it ends, instead of one by one, where that is cheaper.

        They still become visible in their order. Nothing may be acknowledged from inside the block.
        """

    def read(self, key: str, *, limit: int) -> bytes:
        """The whole body. One larger than `limit` is `Corrupt` and is not read into memory."""

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[Bytes]:
        """The body, or a part of it, in pieces of bounded size, read as they are asked for.

        A range that reaches beyond the end is cut short, without an error.
        """

    def info(self, key: str) -> ObjectInfo | None:
        """Size and age of one object, or None."""

    def list(self, prefix: str) -> Listing:
        """Every object below `prefix` (a folder, ending in `/`, or empty), ascending by key."""

    def delete(self, keys: Sequence[str], then: Sequence[str] = ()) -> None:
        """Remove objects; absent ones are fine.

        Guarantees: where removals have an order, a crash never leaves `then` gone and `keys` there.
        Does not guarantee: that a removal survives a power cut. What is deleted is never needed again,
        so its coming back does no harm and is not worth a sync.
        """

    def leftovers(self, prefix: str = "") -> Listing:
        """What interrupted writes left below `prefix` and no listing shows: temporary files, and empty folders (their
        keys end in `/`). `delete` takes these keys too.
        """


@runtime_checkable
class WritesPieces(Protocol):
    """An `ObjectStore` that takes an object piece by piece, without a condition: only where no other writer is."""

    def writer(self, key: str) -> NewFile:
        """Begin an object, in place of one that may be there. It is there, and durable, once it is closed."""
