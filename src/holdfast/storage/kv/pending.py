"""What a transaction holds in this process before it is committed."""

from __future__ import annotations

from holdfast.errors import HoldfastError, Invalid
from holdfast.storage.kv.backend import Changes, Space

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

    def add(self, changes: Changes) -> None:
        for space, of_space in changes.items():
            self.changes[space].update(of_space)
            self.size += sum(map(len, of_space)) + sum(map(len, filter(None, of_space.values())))
            self.size += OVERHEAD * len(of_space)

    def __bool__(self) -> bool:
        return bool(self.changes["meta"] or self.changes["results"])
