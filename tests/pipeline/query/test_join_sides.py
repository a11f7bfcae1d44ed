"""The sides of a join by their names: swapped, renamed, in another order, with other columns."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.pipeline.query.description import StatefulOperator
from holdfast.pipeline.query.join_sides import are_sides_known, compare_sides


def join(left: str, right: str) -> StatefulOperator:
    """Columns as `name:type name:type`."""
    sides = [[column.split(":") for column in side.split()] for side in (left, right)]
    types = [kind for _, kind in sides[0]] + ["|"] + [kind for _, kind in sides[1]]
    return StatefulOperator("join", "INNER", values=types, sides=[[name for name, _ in side] for side in sides])


BEFORE = join("id:int amount:int at:date", "id:int seen:int at:date")
CASES = [
    ("nothing", "id:int amount:int at:date", "id:int seen:int at:date", []),
    (
        "swapped, with the same types",
        "id:int seen:int at:date",
        "id:int amount:int at:date",
        [("the sides of the join are swapped: left was (id, amount, at) and is (id, seen, at)", "reset")],
    ),
    (
        "renamed",
        "id:int total:int at:date",
        "id:int seen:int at:date",
        [("the left side of the join has total in the place of amount", "accept")],
    ),
    (
        "another order, with the same types",
        "amount:int id:int at:date",
        "id:int seen:int at:date",
        [("the left side of the join kept (id, amount, at) in this order and would keep (amount, id, at)", "reset")],
    ),
    (
        "one has moved, one is new",
        "amount:int total:int at:date",
        "id:int seen:int at:date",
        [("the left side of the join has amount in the place of id, total in the place of amount", "reset")],
    ),
    (
        "another column and another type",
        "id:int amount:int at:date",
        "id:bigint seen:int at:date by:string",
        [("the right side of the join keeps by string in addition, keeps id as bigint, which was int", "reset")],
    ),
    (
        "fewer columns",
        "id:int at:date",
        "id:int seen:int",
        [
            ("the left side of the join keeps no amount any more", "reset"),
            ("the right side of the join keeps no at any more", "reset"),
        ],
    ),
]


@pytest.mark.parametrize(("left", "right", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_difference_between_the_sides_of_a_join(left: str, right: str, expected: list[tuple[str, str]]) -> None:
    now = join(left, right)
    assert are_sides_known(BEFORE, now)
    found = list(compare_sides(BEFORE, now, is_same_spark=True))
    assert [(one.what, one.consequence) for one in found] == expected


def test_another_version_of_spark_may_keep_other_columns_but_not_mix_them_up() -> None:
    more = join("id:int amount:int at:date by:int", "id:int seen:int at:date")
    assert [one.consequence for one in compare_sides(BEFORE, more, is_same_spark=False)] == ["accept"]
    swapped = join("id:int seen:int at:date", "id:int amount:int at:date")
    assert [one.consequence for one in compare_sides(BEFORE, swapped, is_same_spark=False)] == ["reset"]


def test_a_checkpoint_of_an_earlier_release_has_no_names() -> None:
    assert not are_sides_known(msgspec.structs.replace(BEFORE, sides=[]), BEFORE)
    assert not are_sides_known(StatefulOperator("aggregation"), StatefulOperator("aggregation"))
