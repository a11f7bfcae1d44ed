"""Tests with every value of one thing and every value of another, of which `make test` runs enough."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")


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


def only(*names: str) -> Callable[[type[T]], type[T]]:
    """For a class of inherited tests: `make test` runs those of these names, `make soak` all."""

    return lambda kind: _for_soak(kind, lambda name: name not in names, known=names)


def besides(*names: str) -> Callable[[type[T]], type[T]]:
    """For a class of inherited tests: those of these names are for `make soak` alone."""
    return lambda kind: _for_soak(kind, lambda name: name in names, known=names)


def _for_soak(kind: type[T], is_for_soak: Callable[[str], bool], *, known: Collection[str]) -> type[T]:
    inherited = {name: getattr(kind, name) for name in dir(kind) if name.startswith("test_")}
    unknown = set(known) - set(inherited)
    assert not unknown, unknown
    for name in filter(is_for_soak, inherited):
        # A copy: the mark must not reach the other classes that inherit the test.
        test = inherited[name]
        copied = types.FunctionType(test.__code__, test.__globals__, name, test.__defaults__, test.__closure__)
        copied.__dict__.update(test.__dict__)
        copied.__annotations__ = test.__annotations__
        setattr(kind, name, pytest.mark.soak(copied))
    return kind


def _is_due(number: int, place: int, rows: Sequence[Any], columns: Sequence[Any]) -> bool:
    shorter = min(len(rows), len(columns))
    return number % shorter == place % shorter


def _name(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
