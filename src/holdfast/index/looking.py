"""Looking at an index without opening it: whoever has it open goes on undisturbed, and nothing can be changed."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import Invalid, NotFound
from holdfast.index.resetting import refuse_unfinished
from holdfast.storage.kv.backend import Changes, Looker, Space


class LookedAt:
    """A backend that refuses to be written to.

    Whoever writes may begin to empty the index at any time, and fail half-way. So each read looks afterwards whether
    that has begun, a scan at its end, and is `Unavailable` then.
    """

    is_persistent = True

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self.address = looker.address
        self.close = looker.close

    def read(self, space: Space, key: bytes) -> bytes | None:
        found = self._looker.read(space, key)
        refuse_unfinished(self._looker)
        return found

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from self._looker.scan(space, prefix)
        refuse_unfinished(self._looker)

    def write(self, changes: Changes) -> None:
        raise self._refusal()

    def commit(self) -> None:
        raise self._refusal()

    def rollback(self) -> None:
        """There is never anything."""

    def _refusal(self) -> Invalid:
        return Invalid(
            f"{self.address} was opened to be looked at.",
            code="index.read-only",
            about=self.address,
            unchanged="the index",
            next_step="open it without read_only=True",
        )


def not_there(address: str) -> NotFound:
    """There is no index to look at."""
    return NotFound(
        f"There is no index at {address}.",
        code="index.none",
        about=address,
        unchanged="everything: looking makes nothing",
        next_step="check the address; a query makes its index when it first commits",
    )
