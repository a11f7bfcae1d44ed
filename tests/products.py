"""Tests with every value of one thing and every value of another, of which `make test` runs enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def in_turn(first: Iterable[Any], second: Iterable[Any], *, but: Collection[Any] = ()) -> list[ParameterSet]:
    """All pairs: in `make test` each of the longer list with one of the shorter, in turn; the others in `make soak`.

    Those of the first list that are in `but` are for `make soak` alone.
    """
    rows, columns = list(first), list(second)
    return [
        pytest.param(
            row,
            column,
            marks=[] if _is_due(number, place, rows, columns) and row not in but else [pytest.mark.soak],
            id=f"{_name(row)}-{_name(column)}",
        )
        for number, row in enumerate(rows)
        for place, column in enumerate(columns)
    ]


def _is_due(number: int, place: int, rows: Sequence[Any], columns: Sequence[Any]) -> bool:
    shorter = min(len(rows), len(columns))
    return number % shorter == place % shorter


def _name(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
