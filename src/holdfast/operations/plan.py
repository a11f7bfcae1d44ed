"""The protocol `Plan`: an operation that is shown before it is applied.

Making a plan only reads. A plan can be printed (`print(*plan.lines(), sep="\\n")`), sent to a program (`as_json()`) and
applied; the command line, a web page, a notebook and a program use it in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.base import steps

Progress = Callable[[int, int], None]
"""Called with the amount done and the total; the total is 0 if unknown."""


class Table(msgspec.Struct, frozen=True):
    """Lines of a plan that belong in columns."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[int, ...] = ()
    """The columns to align right: numbers."""

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
    """The result of `apply`."""

    lines: Sequence[str]
    problems: Sequence[str] = ()
    """Failures, a sentence each."""
    result: Any = None
    """The exact result as plain values, for JSON."""
    exit_code: int = 0
    """The exit code of a command that applied the plan: not 0 if a part failed."""


class Plan(Protocol):
    """An operation that is planned but not applied yet. Frozen; making a plan and showing it change nothing."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""

    @property
    def question(self) -> str:
        """The question to ask a person before `apply`."""

    @property
    def warnings(self) -> Sequence[str]:
        """Side effects of `apply` on others, such as a process that has the store open."""

    @property
    def activity(self) -> str:
        """The label of a progress bar while `apply` runs: `removing`."""

    @property
    def amount(self) -> int:
        """The total of the progress that `apply` reports; 0 if unknown."""

    def lines(self) -> Iterator[str | Table]:
        """The plan for people. Names from a store are not escaped: escape them for a terminal or a web page."""

    def as_json(self) -> Any:
        """The plan for programs: exact, nothing shortened."""

    def apply(self, progress: Progress | None = None) -> Outcome:
        """Carry out the plan.

        Guarantees: the plan is first compared with the current state, because it may have waited for an answer. Parts
        that no longer apply are left out, or `Conflict` is raised and nothing is done; each plan says which.
        Does not guarantee atomicity: a crash or an interruption can leave the work half done. Applying a new plan
        continues from there; the notes of a `KeyboardInterrupt` say what was left.
        """


@contextlib.contextmanager
def progress_of_steps(names: Collection[str], each: int, total: int, progress: Progress | None) -> Iterator[None]:
    """While the block runs, report `each` more as done whenever a step with one of these names ends."""
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
