"""The protocol of a source that a program reads itself, and from where a source resumes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import Struct


class Resume(Struct, frozen=True):
    """From where a source continues. Both fields are None for a source that the index has nothing of."""

    position: bytes | None = None
    """The position of the source's checkpoint: everything before it is in the index."""
    sequence: int | None = None
    """The sequence of the last change that is in the index."""


class Change(Struct, frozen=True):
    """One change, or several that are applied together."""

    sequence: int
    """Higher than that of every change before. Of several, that of the last one."""
    position: bytes | None
    """From where the source continues after this change; up to 65,536 bytes."""
    value: Any
    """What has changed. Only the program that applies it looks at it."""


class Source(Protocol):
    """Something with changes in an order that does not vary, such as a log."""

    def changes(self, resume_from: bytes | None, last_sequence: int | None) -> Iterable[Change]:
        """The changes after `resume_from`, in order; all of them if it is None.

        The first one has a higher sequence than `last_sequence`, or is one that the index has already: such changes are
        skipped. `PositionUnavailable` if the source does not have the changes after `resume_from` any more.
        """
        ...
