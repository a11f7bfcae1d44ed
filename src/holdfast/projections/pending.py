"""What a transaction will write, and what it may not do."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import Invalid
from holdfast.projections.backend import Change, Space


class Pending:
    """Changes by space and key; the last one of a key wins."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[Space, dict[bytes, bytes | None]] = {}

    def add(self, changes: Iterable[Change]) -> None:
        spaces = self._changes
        for space, key, value in changes:
            try:
                spaces[space][key] = value
            except KeyError:
                spaces[space] = {key: value}

    def __bool__(self) -> bool:
        return any(self._changes.values())

    @property
    def puts(self) -> dict[Space, dict[bytes, bytes]]:
        return {
            space: {key: value for key, value in changes.items() if value is not None}
            for space, changes in self._changes.items()
        }

    @property
    def removals(self) -> dict[Space, list[bytes]]:
        return {
            space: [key for key, value in changes.items() if value is None] for space, changes in self._changes.items()
        }


def nested(address: str) -> Invalid:
    return Invalid(
        f"{address}: this thread has a transaction open, and a second one could never begin.",
        code="transaction.nested",
        about=address,
        unchanged="the store",
        next_step="append from outside the handler: one that writes by SQL holds the transaction of its batch",
    )


def no_sql(address: str) -> Invalid:
    return Invalid(
        f"{address} has no SQL.",
        code="view.no-sql",
        about=address,
        unchanged="the store",
        next_step="keep the read model with put, get, delete and scan, or use sqlite:///path",
    )


def closed(address: str) -> Invalid:
    return Invalid(
        f"{address} is closed, or was opened by the process that forked this one.",
        code="store.closed",
        about=address,
        unchanged="the store",
        next_step="open it again, in the process that uses it",
    )
