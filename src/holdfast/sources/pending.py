"""What a transaction holds in this process before it is committed."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import HoldfastError, Invalid
from holdfast.sources.backend import Change, Space

LIMIT = 512 << 20
"""Bytes of keys and values that a transaction may hold in memory."""
OVERHEAD = 150
"""What one change takes in Python, in bytes, besides its key and value."""


def too_large(limit: int, address: str) -> HoldfastError:
    return Invalid(
        f"The session holds more than {limit >> 20} MiB, and an index of this kind keeps a session in memory until it "
        "is committed.",
        code="index.session-too-large",
        about=address,
        unchanged="the index; nothing of this session was applied",
        next_step="make epochs smaller, with maxOffsetsPerTrigger or maxFilesPerTrigger, or commit more often",
    )


class Pending:
    """Changes by space and key; the last one of a key wins."""

    def __init__(self) -> None:
        self.changes: dict[Space, dict[bytes, bytes | None]] = {"meta": {}, "results": {}}
        self.size = 0
        """An upper bound: a key that was changed twice counts twice."""

    def add(self, changes: Sequence[Change]) -> None:
        size = 0
        into = self.changes
        for space, key, value in changes:
            into[space][key] = value
            size += len(key) + (len(value) if value is not None else 0)
        self.size += size + OVERHEAD * len(changes)

    def __bool__(self) -> bool:
        return bool(self.changes["meta"] or self.changes["results"])
