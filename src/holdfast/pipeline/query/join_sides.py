"""The two sides of a stream-stream join, compared by the names of the columns that they keep. Pure.

Spark keeps the rows of each side by the order of their columns, and knows no names. Columns of the same types under
other names, in another order or on the other side would be read as what they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.pipeline.query.change import Difference
from holdfast.pipeline.query.description import BETWEEN_SIDES, StatefulOperator

Columns = list[tuple[str, str]]
"""Names and types."""


def are_sides_known(before: StatefulOperator, now: StatefulOperator) -> bool:
    """Whether both are joins whose columns have names; a checkpoint of an earlier release has only types."""
    return all(len(one.sides) == 2 and _types(one) == [len(side) for side in one.sides] for one in (before, now))


def compare_sides(before: StatefulOperator, now: StatefulOperator, *, is_same_spark: bool) -> Iterator[Difference]:
    """What is not as it was on either side of a join."""
    old, new = _columns(before), _columns(now)
    if old[0] != old[1] and old == new[::-1]:
        what = f"the sides of the join are swapped: left was {_shown(old[0])} and is {_shown(new[0])}"
        yield _reset(what, "Spark would take the rows of one side for those of the other")
        return
    for name, one, other in zip(("left", "right"), old, new, strict=True):
        if one != other:
            yield _side(f"the {name} side of the join", one, other, is_same_spark=is_same_spark)


def _side(the: str, before: Columns, now: Columns, *, is_same_spark: bool) -> Difference:
    if sorted(before) == sorted(now):
        what = f"{the} kept {_shown(before)} in this order and would keep {_shown(now)}"
        return _reset(what, "Spark knows them by their order and would mix them up")
    if [kind for _, kind in before] == [kind for _, kind in now]:
        renamed = [(old, new) for (old, _), (new, _) in zip(before, now, strict=True) if old != new]
        what = f"{the} has {', '.join(f'{new} in the place of {old}' for old, new in renamed)}"
        if {new for _, new in renamed} & {old for old, _ in renamed}:
            return _reset(what, "Spark knows them by their order and would mix them up")
        return Difference(what, "what is kept under the one name is taken for the other", "accept")
    parts = [f"keeps {name} {kind} in addition" for name, kind in now if name not in dict(before)]
    parts += [f"keeps no {name} any more" for name, _ in before if name not in dict(now)]
    kept = dict(before)
    parts += [f"keeps {name} as {kind}, which was {kept[name]}" for name, kind in now if kept.get(name, kind) != kind]
    what = f"{the} {', '.join(parts) or f'kept {_shown(before)} and would keep {_shown(now)}'}"
    if is_same_spark:
        return _reset(what, "the state has other values than it would need")
    return Difference(what, "another version of Spark may keep the same state in another form", "accept")


def _reset(what: str, follows: str) -> Difference:
    return Difference(what, follows, "reset", code="pipeline.needs-reset")


def _types(join: StatefulOperator) -> list[int]:
    """How many types each side has."""
    if join.values.count(BETWEEN_SIDES) != 1:
        return []
    middle = join.values.index(BETWEEN_SIDES)
    return [middle, len(join.values) - middle - 1]


def _columns(join: StatefulOperator) -> list[Columns]:
    middle = join.values.index(BETWEEN_SIDES)
    types = join.values[:middle], join.values[middle + 1 :]
    return [list(zip(names, kinds, strict=True)) for names, kinds in zip(join.sides, types, strict=True)]


def _shown(columns: Sequence[tuple[str, str]]) -> str:
    return f"({', '.join(name for name, _ in columns)})"
