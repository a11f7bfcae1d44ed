"""Calls for many items: at once, in order, in the caller's block of steps, and none after a failure."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.base.parallel import in_parallel
from holdfast.base.steps import observed_by, step


def test_the_results_are_in_the_order_of_the_items() -> None:
    assert in_parallel(lambda number: number * number, range(20), at_once=3, name="test") == [n * n for n in range(20)]
    assert in_parallel(str, [], at_once=3, name="test") == []


def test_so_many_calls_run_at_once() -> None:
    together = threading.Barrier(4, timeout=30)
    in_parallel(lambda _: together.wait(), range(4), at_once=4, name="test")


@pytest.mark.parametrize(("items", "is_here"), [(1, True), (2, True), (3, False)])
def test_a_few_are_not_worth_threads(items: int, is_here: bool) -> None:
    found = in_parallel(lambda _: threading.current_thread(), range(items), at_once=3, few=2, name="test")
    assert all((thread is threading.current_thread()) == is_here for thread in found)


def test_their_steps_belong_to_the_callers_block() -> None:
    seen: list[Any] = []

    def act(number: int) -> None:
        with step(f"act.{number}"):
            pass

    with observed_by(lambda name, phase, _: seen.append((name, phase))):
        in_parallel(act, range(3), at_once=3, name="test")
    assert sorted(seen) == [(f"act.{number}", phase) for number in range(3) for phase in ("begin", "end")]


def test_what_has_not_begun_when_one_fails_is_left_out() -> None:
    begun: list[int] = []
    let_go = threading.Event()

    def act(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise ZeroDivisionError
        let_go.wait(0.2)

    with pytest.raises(ZeroDivisionError):
        in_parallel(act, range(1000), at_once=2, name="test")
    assert len(begun) < 1000
