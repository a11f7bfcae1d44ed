"""Looking at a store without opening it: whoever has it open goes on undisturbed, and nothing can be changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.errors import Invalid, NotFound
from holdfast.projections import keys, records
from holdfast.projections.backend import Reading, Row, Space, Transaction
from holdfast.projections.memory import MemoryBackend


class Looker(Reading, Protocol):
    """The reading half of a backend. It takes no lock and fences nobody; a store that is not there is `NotFound`."""

    @property
    def address(self) -> str: ...

    @property
    def has_sql(self) -> bool: ...

    @property
    def is_persistent(self) -> bool: ...

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]: ...

    def close(self) -> None: ...


class LookedAt:
    """A backend that refuses to be written to. `NotFound` if nobody has made a store there."""

    def __init__(self, looker: Looker | MemoryBackend) -> None:
        self._looker = looker
        self.address = looker.address
        self.has_sql = looker.has_sql
        self.is_persistent = looker.is_persistent
        try:
            self._check_made()
        except BaseException:
            looker.close()
            raise

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._looker.read(space, keys)

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        return self._looker.scan(space, start, end, limit)

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        return self._looker.query(sql, parameters)

    def begin(self) -> Transaction:
        raise Invalid(
            f"{self.address} was opened to be looked at.",
            code="store.read-only",
            about=self.address,
            unchanged="the store",
            next_step="open it without read_only=True",
        )

    def close(self) -> None:
        self._looker.close()

    def _check_made(self) -> None:
        """Opening a store to write makes what is missing here; a look must not."""
        if self.read("meta", [keys.FORMAT])[0] is not None:
            return
        if self.scan("meta", b"", None, 1) or self.scan("events", b"", None, 1):
            raise records.corrupt(self.address, "the record of its format", "it is missing, and there are others")
        raise not_there(self.address)


def not_there(address: str) -> NotFound:
    """There is no store to look at."""
    return NotFound(
        f"There is no store of events and projections at {address}.",
        code="store.none",
        about=address,
        unchanged="everything: looking makes nothing",
        next_step="check the address; open_projections makes a store when it is first opened",
    )
