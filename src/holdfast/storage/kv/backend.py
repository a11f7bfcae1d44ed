"""What a backend has to do: keep an ordered map of bytes, with one writer and one commit that is atomic and durable.

Everything else is the same on all of them and lies above: sessions and their nesting, checks of ids and positions, the
encoding of checkpoints, the configuration hash, resets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

Space = Literal["meta", "results"]
"""Two maps under one commit: checkpoints and the index's own records; what the query's results are."""

Changes = Mapping[Space, Mapping[bytes, bytes | None]]
"""Keys with their new values, by space; None removes a key."""


class Looker(Protocol):
    """The reading half of a backend. It takes no lock and no generation; an index that is not there is `NotFound`."""

    @property
    def address(self) -> str: ...

    def read(self, space: Space, key: bytes) -> bytes | None: ...

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One index on one medium, opened by one process for as long as it is open.

    Opening it a second time is refused, or fences the first: its next commit is then `Fenced` and applies nothing.
    """

    @property
    def is_persistent(self) -> bool:
        """Whether a commit outlives the process."""

    @property
    def address(self) -> str:
        """Where it is, for messages: no secrets."""

    def read(self, space: Space, key: bytes) -> bytes | None:
        """The committed value; None if there is none. Sees nothing of an open transaction."""

    def scan(self, space: Space, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Committed keys that begin with `prefix`, in order of their bytes, with their values.

        In memory that does not grow with their number, as of one moment where the medium can.
        """

    def write(self, changes: Changes) -> None:
        """Add to the transaction that is open; begins one if none is. Later changes of a key win."""

    def commit(self) -> None:
        """Make all that was written since the last commit visible and durable, in one step.

        Afterwards no transaction is open, whatever happened. If it raises, nothing was applied; `OutcomeUnknown` alone
        means that this could not be found out. `Fenced` if another process has opened the index since.
        """

    def rollback(self) -> None:
        """Forget what was written since the last commit. Fine if there is nothing, and after a failure."""

    def close(self) -> None:
        """Let go of everything; rolls back. Fine to call twice."""
