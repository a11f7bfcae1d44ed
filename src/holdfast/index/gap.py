"""What a source could not deliver and somebody decided to do without."""

from __future__ import annotations

from msgspec import Struct


class Gap(Struct, frozen=True):
    """Changes of one source that are not in the index, and never will be."""

    source_id: str
    from_position: bytes | None
    """Up to here everything is in the index; None: nothing was."""
    to_position: bytes | None
    """From here on everything is; None: from wherever the source began again."""
    when_ms: int
    """When this was decided, in milliseconds since 1970."""
    why: str
