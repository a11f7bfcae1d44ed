"""How far a projection has come in each stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.projections.arguments import check_number, check_stream, refused


class GlobalProjectionCheckpoint:
    """The last event of each stream that is in the read model; 0 for a stream that was never seen."""

    __slots__ = ("cursors",)

    cursors: dict[str, int]

    def __init__(self, cursors: Mapping[str, int] | None = None) -> None:
        self.cursors = dict(cursors or {})

    def cursor_for(self, stream: str) -> int:
        return self.cursors.get(stream, 0)

    def advance(self, stream: str, sequence: int) -> None:
        """Move a cursor forward. One that is as far or further stays."""
        if sequence > self.cursor_for(stream):
            self.cursors[stream] = sequence

    def copy(self) -> GlobalProjectionCheckpoint:
        """Another one that can be advanced by itself."""
        return GlobalProjectionCheckpoint(self.cursors)

    def __eq__(self, other: object) -> bool:
        """Equal if every stream's cursor is: one that is missing is 0."""
        if not isinstance(other, GlobalProjectionCheckpoint):
            return NotImplemented
        return _seen(self.cursors) == _seen(other.cursors)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GlobalProjectionCheckpoint({self.cursors!r})"


def checked(checkpoint: Any) -> dict[str, int]:
    """The cursors without those that are 0, or `Invalid`."""
    if not isinstance(checkpoint, GlobalProjectionCheckpoint):
        raise refused("checkpoint", f"a GlobalProjectionCheckpoint is needed, not {type(checkpoint).__name__}")
    for stream, cursor in checkpoint.cursors.items():
        check_stream(stream)
        check_number("cursor", cursor)
    return _seen(checkpoint.cursors)


def _seen(cursors: dict[str, int]) -> dict[str, int]:
    return {stream: cursor for stream, cursor in cursors.items() if cursor}
