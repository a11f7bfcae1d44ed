"""What differs between a pipeline and its newest checkpoint, and what a start does about it.

| consequence | what a start does |
|---|---|
| harmless | goes on, and tells |
| accept | refused, unless on_change is 'accept' or 'reset' |
| reset | refused, unless on_change is 'reset': Spark cannot go on from its offsets or state, or would mix them up |
"""

from __future__ import annotations

from typing import Literal

import msgspec

Consequence = Literal["harmless", "accept", "reset"]


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not as it was."""

    what: str
    follows: str
    consequence: Consequence
    code: str = "pipeline.changed"

    def __str__(self) -> str:
        return f"{self.what} ({self.follows})"


class QueryChange(msgspec.Struct, frozen=True):
    """How a pipeline differs from the newest checkpoint."""

    differences: list[Difference] = []

    @property
    def asks(self) -> bool:
        """Whether the user has to say what to do about it."""
        return any(one.consequence != "harmless" for one in self.differences)

    @property
    def blockers(self) -> list[Difference]:
        """The differences because of which Spark cannot go on."""
        return self._of("reset")

    @property
    def notes(self) -> list[str]:
        """The harmless ones, a sentence each."""
        return [f"{one.what[0].upper()}{one.what[1:]}: {one.follows}." for one in self._of("harmless")]

    @property
    def what(self) -> str:
        """The others, without what would follow if the pipeline went on."""
        return "; ".join(one.what for one in [*self.blockers, *self._of("accept")])

    def __str__(self) -> str:
        return "; ".join(str(one) for one in [*self.blockers, *self._of("accept")])

    def _of(self, consequence: str) -> list[Difference]:
        return [one for one in self.differences if one.consequence == consequence]
