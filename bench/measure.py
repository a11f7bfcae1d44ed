"""Timing two rivals fairly: in turns, so that whatever disturbs the machine disturbs both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One line of the table."""

    what: str
    measured: str
    must_reach: str
    reached: bool
    detail: str = ""


def in_turns(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    rounds: int,
    prepare: Callable[[], object] = lambda: None,
) -> tuple[float, float]:
    """Median seconds of each, after one unmeasured round. `prepare` runs before each and is not measured."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        pair = [(0, ours), (1, theirs)]
        for which, function in pair if turn % 2 else reversed(pair):
            prepare()
            began = time.perf_counter()
            function()
            if turn:
                times[which].append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])
