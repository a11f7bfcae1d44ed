"""What a medium has to do: keep some ordered maps of bytes, and change them in transactions.

Everything with a meaning lies above and is written once: events and their positions, cursors, read models, rebuilding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, Self

Space = Literal["events", "index", "heads", "cursors", "shadows", "views", "letters", "meta"]
"""Maps under one commit; `keys` says what each holds."""
SPACES: tuple[Space, ...] = ("events", "index", "heads", "cursors", "shadows", "views", "letters", "meta")

Change = tuple[Space, bytes, bytes | None]
"""One key with its new value; None removes it."""
Row = tuple[bytes, bytes]


class Reading(Protocol):
    """What can be read of committed data."""

    def read(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none, all of one moment."""

    def scan(self, space: Space, start: bytes, end: bytes | None, limit: int | None = None) -> list[Row]:
        """Keys from `start` up to and without `end`, in order of their bytes, all of one moment. None: to the last."""


class Transaction(Reading, Protocol):
    """The only writer there is from its beginning to its end, in whatever process.

    Reads see what was committed before it began, and nothing of what it writes. As a context manager it commits at the
    end of the block and rolls back if that raises. One that has ended stays ended.
    """

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run one SQL statement at once, within this transaction; its rows. `Invalid` where there is no SQL.

        What is wrong with the statement is raised as the medium says it, what is wrong with the medium as our error.
        """

    def write(self, changes: Iterable[Change]) -> None:
        """Add to what the commit writes. Later changes of a key win."""

    def commit(self) -> None:
        """Make all of it visible and durable in one step.

        If it raises, nothing was applied, unless it is `OutcomeUnknown`. `Fenced` if another process has taken over a
        store that takes one writer.
        """

    def rollback(self) -> None:
        """Forget it. Fine after a commit and after a failure."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None: ...


class Backend(Reading, Protocol):
    """One store on one medium. Threads may share it."""

    @property
    def is_persistent(self) -> bool:
        """Whether a commit outlives the process."""

    @property
    def address(self) -> str:
        """Where it is, for messages: no secrets."""

    @property
    def has_sql(self) -> bool:
        """Whether a read model can be tables of one's own."""

    def begin(self) -> Transaction:
        """Begin a transaction; waits for one that is open elsewhere. `Invalid` if this thread has one open."""

    def query(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Read committed data by SQL. `Invalid` where there is none."""

    def close(self) -> None:
        """Let go of everything. Fine to call twice."""
