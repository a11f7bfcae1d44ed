"""The protocol `Plan`: what an operation would do, shown before it is done.

Making a plan only looks. It can be printed (`print(*plan.lines(), sep="\\n")`), sent to a program (`as_json()`), and
applied, by a command line, a web page, a notebook or a program alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.base import steps

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much; the latter is 0 if unknown."""


class Table(msgspec.Struct, frozen=True):
    """Lines of a plan that belong in columns."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[int, ...] = ()
    """Which columns are numbers."""

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.header))]
        return "\n".join(
            "  ".join(
                cell.rjust(widths[n]) if n in self.right else cell.ljust(widths[n]) for n, cell in enumerate(line)
            ).rstrip()
            for line in lines
        )


class Outcome(msgspec.Struct, frozen=True):
    """What `apply` did."""

    lines: Sequence[str]
    problems: Sequence[str] = ()
    """What could not be done."""
    result: Any = None
    """The same exactly, as plain values for JSON."""
    exit_code: int = 0
    """The exit code of a command that applied it: not 0 if a part failed."""


class Plan(Protocol):
    """An operation that is planned but not done. Frozen; making it and showing it change nothing."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""

    @property
    def question(self) -> str:
        """What to ask a person before `apply`."""

    @property
    def warnings(self) -> Sequence[str]:
        """What `apply` would do to others, such as a process that has the store open."""

    @property
    def activity(self) -> str:
        """What is being done while `apply` runs, in a word: `removing`."""

    @property
    def amount(self) -> int:
        """How much there is to do, in the units that `apply` reports; 0 if unknown."""

    def lines(self) -> Iterator[str | Table]:
        """The plan for people. Names from a store stand in it as they are: escape them for a terminal or a page."""

    def as_json(self) -> Any:
        """The plan for programs: exact, nothing shortened."""

    def apply(self, progress: Progress | None = None) -> Outcome:
        """Do it.

        Guarantees: it is first held against what is there now, because a plan may have waited for an answer. What is no
        longer due is left out, or nothing is done and it is `Conflict`; each plan says which.
        Does not guarantee: that nothing is left half-way by a crash or an interruption. Applying a new plan goes on
        from there; the notes of a `KeyboardInterrupt` say what it left.
        """


@contextlib.contextmanager
def progress_of_steps(names: Collection[str], each: int, total: int, progress: Progress | None) -> Iterator[None]:
    """While the block runs, report `each` as done for every step of one of these names that ends."""
    if progress is None:
        yield
        return
    done = 0

    def observer(name: str, phase: str, _: float) -> None:
        nonlocal done
        if name in names:
            done += each if phase == "end" else 0
            progress(min(done, total) if total else done, total)

    stop = steps.observe(observer)
    try:
        yield
    finally:
        stop()
