"""Which checkpoints may go, and when: decided over data alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.checkpoints.retention import (
    THINNING,
    CheckpointRefs,
    has_doubled,
    is_due,
    kept_by_age,
    needed_ancestors,
    removable,
)

COMPLETE, UNFINISHED = CheckpointRefs(True), CheckpointRefs(False)
DAMAGED = CheckpointRefs(False, is_readable=False)


def child(parent: int, *, complete: bool = True) -> CheckpointRefs:
    return CheckpointRefs(complete, parent_id=parent)


RETENTION: list[tuple[str, dict[int, CheckpointRefs], int, list[int]]] = [
    ("nothing there", {}, 1, []),
    ("too few", {1: COMPLETE, 2: COMPLETE}, 3, []),
    ("just enough", {1: COMPLETE, 2: COMPLETE}, 2, []),
    ("oldest go", {1: COMPLETE, 2: COMPLETE, 3: COMPLETE, 4: COMPLETE}, 2, [1, 2]),
    ("gaps", {1: COMPLETE, 7: COMPLETE, 30: COMPLETE}, 1, [1, 7]),
    ("unfinished do not count", {1: COMPLETE, 2: UNFINISHED, 3: UNFINISHED}, 1, []),
    ("unfinished go when older", {1: COMPLETE, 2: UNFINISHED, 3: COMPLETE}, 1, [1, 2]),
    ("newer unfinished stay", {1: COMPLETE, 2: COMPLETE, 3: UNFINISHED}, 1, [1]),
    ("damaged do not count", {1: COMPLETE, 2: COMPLETE, 3: DAMAGED}, 1, [1]),
    ("none complete", {1: UNFINISHED, 2: DAMAGED}, 1, []),
    ("parent stays", {1: COMPLETE, 2: child(1)}, 1, []),
    ("grandparent stays", {1: COMPLETE, 2: child(1), 3: child(2)}, 1, []),
    ("what is between stays out", {1: COMPLETE, 2: COMPLETE, 3: child(1)}, 1, [2]),
    ("a chain ends at a full one", {1: COMPLETE, 2: child(1), 3: COMPLETE, 4: child(3)}, 1, [1, 2]),
    ("unfinished parent", {1: UNFINISHED, 2: child(1)}, 1, []),
    ("child of an unfinished does not count", {1: COMPLETE, 2: UNFINISHED, 3: child(2)}, 1, []),
    ("parent is gone", {2: COMPLETE, 3: child(1)}, 1, []),
    ("damaged parent hides its own", {1: COMPLETE, 2: DAMAGED, 3: COMPLETE, 4: child(2)}, 1, []),
    ("unfinished child of a kept chain", {1: COMPLETE, 2: COMPLETE, 3: child(1, complete=False)}, 1, []),
    ("parent that is no parent", {1: COMPLETE, 2: child(2), 3: COMPLETE, 4: child(9)}, 1, [1, 2]),
]


@pytest.mark.parametrize(("held", "keep", "expected"), [case[1:] for case in RETENTION], ids=[c[0] for c in RETENTION])
def test_which_ids_are_removable(held: dict[int, CheckpointRefs], keep: int, expected: list[int]) -> None:
    assert removable(list(held), held.__getitem__, keep) == expected
    assert removable(list(reversed(held)), held.__getitem__, keep) == expected


ANCESTORS: list[tuple[str, dict[int, CheckpointRefs], int, list[tuple[int, tuple[int, ...], bool]]]] = [
    ("none", {1: COMPLETE, 2: COMPLETE}, 1, []),
    ("too few complete ones: nothing goes", {1: COMPLETE, 2: child(1)}, 3, []),
    ("only those that are older", {1: COMPLETE, 2: child(1), 3: child(2)}, 2, [(1, (2, 3), True)]),
    ("a chain", {1: COMPLETE, 2: child(1), 3: child(2)}, 1, [(1, (3,), True), (2, (3,), True)]),
    ("two chains", {1: COMPLETE, 2: COMPLETE, 3: child(1), 4: child(2)}, 2, [(1, (3,), True), (2, (4,), True)]),
    (
        "damaged parent",
        {1: COMPLETE, 2: DAMAGED, 3: COMPLETE, 4: child(2, complete=False)},
        1,
        [(1, (2,), False), (2, (4,), True)],
    ),
]


@pytest.mark.parametrize(("held", "keep", "expected"), [case[1:] for case in ANCESTORS], ids=[c[0] for c in ANCESTORS])
def test_why_older_checkpoints_stay(
    held: dict[int, CheckpointRefs], keep: int, expected: list[tuple[int, tuple[int, ...], bool]]
) -> None:
    found = needed_ancestors(list(held), held.__getitem__, keep)
    assert [(one.checkpoint_id, one.needed_by, one.is_certain) for one in found] == expected


@st.composite
def histories(draw: st.DrawFn) -> dict[int, CheckpointRefs]:
    held: dict[int, CheckpointRefs] = {}
    for number in sorted(draw(st.sets(st.integers(1, 15), max_size=12))):
        parent = draw(st.none() | st.integers(1, 16))
        complete = draw(st.booleans())
        held[number] = CheckpointRefs(complete, is_readable=complete or draw(st.booleans()), parent_id=parent)
    return held


@given(histories(), st.integers(1, 4))
def test_retention_never_breaks_what_it_keeps(held: dict[int, CheckpointRefs], keep: int) -> None:
    gone = set(removable(list(held), held.__getitem__, keep))
    kept = held.keys() - gone
    explained = {one.checkpoint_id for one in needed_ancestors(list(held), held.__getitem__, keep)}
    assert explained <= kept
    unexplained = {number for number in kept - explained if gone and number < max(gone)}
    assert not unexplained, "an older checkpoint stays, and nothing says why"

    def whole(number: int, among: Any) -> bool:
        seen = held.get(number)
        if number not in among or seen is None or not seen.is_complete:
            return False
        return seen.parent_id is None or (seen.parent_id < number and whole(seen.parent_id, among))

    before = [number for number in sorted(held) if whole(number, held)]
    after = [number for number in sorted(held) if whole(number, kept)]
    assert after[-keep:] == before[-keep:], "one of the newest complete ones is gone or lost an ancestor"
    assert removable(sorted(kept), held.__getitem__, keep) == [], "a second pass finds more"
    if before:
        newest = before[-1]
        assert all(number in kept for number in held if number > newest), "something newer than them is gone"


def test_retention_looks_only_at_what_it_keeps() -> None:
    looked: list[int] = []

    def look(number: int) -> CheckpointRefs:
        looked.append(number)
        return COMPLETE

    assert len(removable(range(1, 10_001), look, 3)) == 9_997
    assert set(looked) == {10_000, 9_999, 9_998}


YOUNG_ONES: list[tuple[str, dict[int, CheckpointRefs], int, set[int], list[int]]] = [
    ("young ones stay", dict.fromkeys(range(1, 7), COMPLETE), 1, {2, 4}, [1, 3, 5]),
    ("the number is a floor", dict.fromkeys(range(1, 7), COMPLETE), 2, set(), [1, 2, 3, 4]),
    ("ancestors of young ones stay", {1: COMPLETE, 2: child(1), 3: child(2), 4: COMPLETE, 5: COMPLETE}, 1, {3}, [4]),
    ("below a damaged ancestor nothing goes", {1: COMPLETE, 2: DAMAGED, 3: child(2), 4: COMPLETE}, 1, {3}, []),
]


@pytest.mark.parametrize(
    ("held", "keep", "young", "expected"), [case[1:] for case in YOUNG_ONES], ids=[case[0] for case in YOUNG_ONES]
)
def test_retention_of_young_ones(
    held: dict[int, CheckpointRefs], keep: int, young: set[int], expected: list[int]
) -> None:
    assert removable(list(held), held.__getitem__, keep, young=young) == expected


NOW_MS = 1_760_000_000_000
DAY = 86400.0


def test_the_older_the_fewer_are_kept_by_age() -> None:
    """An epoch a minute for ten days, then one a second for three hours; seven days kept."""
    seconds_ago = [*range(864_000, 10_800, -60), *range(10_799, -1, -1)]
    times = {number: NOW_MS - age * 1000 for number, age in enumerate(seconds_ago, 1)}
    kept = sorted(kept_by_age(times, now_ms=NOW_MS, age=7 * DAY))
    ages = [(NOW_MS - times[number]) / 1000 for number in kept]
    assert 7 * DAY <= ages[0] < 8 * DAY, "one can go back by seven days"
    assert len(kept) < 600
    assert ages[-300:] == [float(age) for age in reversed(range(300))], "all of the last five minutes"
    widths = [next(width for limit, width in reversed(THINNING) if age >= limit) for age in ages]
    gaps = [before - after for before, after in itertools.pairwise(ages)]
    assert all(gap <= 2 * width for gap, width in zip(gaps, widths, strict=False)), "no hole in the past"


@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=60),
    st.integers(1, 20_000),
    st.lists(st.integers(0, 5000), max_size=4),
)
@example(pauses=[1, 1, 1, 1, 3658], age=3602, waits=[3539])  # slots become longer after some were given up
@example(pauses=[1, 1, 1, 1], age=7200, waits=[2197, 5000])  # slots become longer between two checkpoints
def test_thinning_step_by_step_ends_as_at_once(pauses: list[int], age: int, waits: list[int]) -> None:
    """What stays later has stayed until then: no checkpoint that is wanted was removed before."""
    at, times = 0, {}
    for number, pause in enumerate(pauses, 1):
        at += pause * 1000
        times[number] = at
    held = dict(times)
    for wait in (0, *waits):
        at += wait * 1000
        expected = kept_by_age(times, now_ms=at, age=age)
        held = {number: times[number] for number in kept_by_age(held, now_ms=at, age=age)}
        assert held.keys() == expected


@pytest.mark.parametrize(
    ("number", "others", "expected"),
    [
        (1, {}, False),
        (250, {}, False),  # the first of all, or the only one that is left
        (99, {98}, False),
        (100, {98, 99}, True),
        (101, {100}, False),
        (205, {198}, True),  # ids may have gaps
        (300, {200}, True),
        (300, set(range(150, 300)), False),  # 150 to read: every 200
        (400, set(range(250, 400)), True),
    ],
)
def test_what_is_due_once_in_a_hundred(number: int, others: set[int], expected: bool) -> None:
    assert is_due(number, {number, *others}, 100) is expected


def test_of_consecutive_ids_only_the_one_before_is_looked_at() -> None:
    class Kept(set[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("every save would look at the whole history")

    assert is_due(10_100, Kept(range(1, 10_101)), 100) is False
    assert is_due(10_200, Kept(range(1, 10_201)), 100) is False
    assert is_due(10_200, Kept(range(10_150, 10_201)), 100) is True


@pytest.mark.parametrize(
    ("before", "number", "expected"),
    [
        (0, 1, False),
        (98, 99, False),
        (99, 100, True),
        (100, 101, False),
        (199, 200, True),
        (299, 300, False),  # 300 to read, and 200 were read a hundred ago
        (399, 400, True),
        (12_799, 12_800, True),
        (12_800, 25_599, False),
        (98, 105, True),  # ids may have gaps
        (105, 98, False),  # and be saved in any order
    ],
)
def test_what_is_due_when_the_checkpoints_have_doubled(before: int, number: int, expected: bool) -> None:
    assert has_doubled(before, number, 100) is expected
