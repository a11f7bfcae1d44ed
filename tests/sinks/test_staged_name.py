"""Which staged output is whose, and which may go."""

from __future__ import annotations

import pytest

from holdfast.errors import Invalid
from holdfast.sinks.sink import Delivery
from holdfast.sinks.staged_name import left_over, name_in, new_name, over, parse, removed_if_it_fails
from holdfast.testing.conformance.sinks import delivery

NEWEST = delivery(5, lineage=1, generation=3)


@pytest.mark.parametrize("text", ["", "x", "_removing-1", "a-1-2-3-0123456789ab/b", "a-1-2-x-0123456789ab", None, 7])
def test_other_names_are_nobodys(text: object) -> None:
    assert parse(text) is None


def test_a_name_tells_what_it_was_made_of() -> None:
    of = delivery(7, lineage=2, generation=9, pipeline="ä/..\\%~ " * 40)
    assert new_name(of) != new_name(of)
    found = parse(new_name(of))
    assert found is not None
    assert found.is_of(of)
    assert (found.lineage, found.epoch, found.generation) == (2, 7, 9)


@pytest.mark.parametrize(
    ("staged", "left_over", "over"),
    [
        (delivery(5, lineage=1, generation=3), True, False),
        (delivery(5, lineage=1, generation=2), True, True),
        (delivery(5, lineage=1, generation=4), False, False),
        (delivery(4, lineage=1, generation=2), False, True),
        (delivery(5, lineage=0, generation=2), False, True),
        (delivery(6, lineage=1, generation=2), False, False),  # the driver before may still decide it
        (delivery(7, lineage=1, generation=2), False, True),
        (delivery(1, lineage=2, generation=2), False, False),  # the first after a reset
        (delivery(2, lineage=2, generation=2), False, True),
        (delivery(5, lineage=1, generation=2, sink="other"), False, False),
    ],
)
def test_what_may_go(staged: Delivery, left_over: bool, over: bool) -> None:
    found = parse(new_name(staged))
    assert found is not None
    assert (found.is_left_over(NEWEST), found.is_over(NEWEST)) == (left_over, over)


def test_descriptor_of_another_delivery() -> None:
    name = new_name(delivery(1))
    assert name_in({"staged": name}, delivery(1, generation=8), area="/x") == name
    for descriptor in ({"staged": new_name(delivery(2))}, {"staged": 5}, {}):
        with pytest.raises(Invalid) as caught:
            name_in(descriptor, delivery(1), area="/x")
        assert caught.value.code == "sink.descriptor"


def test_what_of_an_area_may_go() -> None:
    earlier, ours = new_name(delivery(5, lineage=1, generation=2)), new_name(NEWEST)
    names = ["_removing-1", ours, earlier]
    assert left_over(names, NEWEST) == sorted([earlier, ours])
    assert over(names, NEWEST, None) == [earlier]
    assert over(names, NEWEST, {"staged": earlier}) == []


def test_what_is_staged_in_a_block_that_raises_is_removed() -> None:
    removed: list[str] = []

    def remove(name: str) -> None:
        removed.append(name)
        raise OSError("the disk is gone")

    with pytest.raises(ZeroDivisionError), removed_if_it_fails("a", remove):
        raise ZeroDivisionError  # the first failure, not that of the removal
    with removed_if_it_fails("b", remove) as name:
        assert name == "b"
    assert removed == ["a"]
