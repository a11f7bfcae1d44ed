"""How far a source has been read."""

from __future__ import annotations

from msgspec import Struct


class SourceCheckpoint(Struct, frozen=True):
    """The last change of a source that is in the index, and where the source itself goes on from there."""

    sequence: int
    """Of the last change applied, as the source counts them."""
    source_position: bytes | None = None
    """What the source needs to go on; its meaning is the source's own. None: it said nothing."""


class StoredCheckpoint(Struct, frozen=True):
    """A checkpoint with what is kept beside it, for people to look at."""

    checkpoint: SourceCheckpoint
    written_ms: int
    """When it was staged, in milliseconds since 1970."""
