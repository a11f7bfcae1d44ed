"""Any failure at any place of an epoch, and what the next driver makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from epoch_fakes import Killed, World
from epoch_runs import COMMITTED, run, statuses
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.steps import observe
from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.pipeline.epoch import finish_owed
from holdfast.pipeline.recovery import recover_sinks
from holdfast.pipeline.recovery_plan import Observation, PipelineSpec, WorkdirState, plan_recovery
from holdfast.sinks import RowsRefused
from places import MemoryPlace


class Supervised:
    """Starts drivers one after the other, as a supervisor would, until Spark has counted all epochs as done."""

    def __init__(self, memory: MemoryPlace, epochs: int) -> None:
        self.memory = memory
        self.world = World(memory.open())
        self.epochs = epochs
        self.done = 0
        self.tries = 0

    def attempt(self) -> None:
        """One driver's life; raises what ended it."""
        store = self.memory.open()
        chosen = store.recover_latest_validated().require()
        found = store.load_by_id(chosen) if chosen else None
        generation = store.claim("a driver").generation
        standings = recover_sinks(self.world.named, found, "shop", generation)
        planned = self.done  # Spark has planned one more than it counts as done
        workdir = WorkdirState("/data/work", False, "shop", "q-1", True, planned, planned - 1)
        wanted = PipelineSpec("shop", 77, frozenset({"orders"}), frozenset(self.world.sinks))
        plan = plan_recovery(Observation(self.memory.url, found, workdir, [], standings), wanted)
        if found is not None and plan.owed_sinks:
            finished = finish_owed(found, self.world.named, store, pipeline="shop", generation=generation)
            finished.raise_failure()
            found = finished.manifest
        runner = self.world.start(found, plan.delivered, store=store)
        while self.done < self.epochs:
            self.tries += 1
            run(
                self.world, runner, self.done + 1, (f"epoch {self.done + 1}, try {self.tries}",)
            )  # never the same rows again
            self.world.failures.at("return")
            self.done += 1

    def check(self) -> None:
        """Every epoch once in each sink, the same rows in both, and nothing left behind."""
        lake, pg = self.world.seen("lake"), self.world.seen("pg")
        assert list(lake) == list(range(1, self.epochs + 1))
        assert lake == pg
        assert all(len(rows) == 1 for rows in lake.values())
        assert self.world.left() == {"lake": 0, "pg": 0}
        assert statuses(self.memory.open()) == {"lake": COMMITTED, "pg": COMMITTED}
        store = self.memory.open()
        assert all(store.validate_checkpoint(number).valid for number in store.list_ids())


def events_of_a_run() -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    stop = observe(lambda name, phase, _: seen.append((name, phase)))
    try:
        Supervised(MemoryPlace(), 2).attempt()
    finally:
        stop()
    return seen


def test_killed_at_every_step(memory: MemoryPlace) -> None:
    total = len(events_of_a_run())
    assert total > 30
    for fatal in range(total):
        supervised = Supervised(MemoryPlace(), 2)
        count = iter(range(total + 1))

        def observer(name: str, phase: str, _: float, count: Any = count, fatal: int = fatal) -> None:
            if next(count) == fatal:
                raise Killed

        stop = observe(observer)
        try:
            with pytest.raises(Killed):
                supervised.attempt()
        finally:
            stop()
        supervised.attempt()
        supervised.check()


POINTS = [
    *(f"{what} {sink}" for what in ("stage", "staged", "commit", "committed", "rollback") for sink in ("lake", "pg")),
    *("snapshot", "evaluate", "return"),
]
PROBLEMS: dict[str, type[BaseException]] = {
    "unavailable": Unavailable,
    "refused": RowsRefused,
    "unknown": OutcomeUnknown,
    "user": RuntimeError,
    "killed": Killed,
}


@settings(max_examples=60)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(POINTS), st.sampled_from(sorted(PROBLEMS)), min_size=1, max_size=3), max_size=5
    )
)
def test_failures_after_failures(troubles: list[dict[str, str]]) -> None:
    supervised = Supervised(MemoryPlace(), 3)
    for trouble in troubles:
        supervised.world.failures.planned = {at: PROBLEMS[kind]("trouble") for at, kind in trouble.items()}
        try:
            supervised.attempt()
        except (HoldfastError, RuntimeError, Killed):
            continue
    supervised.world.failures.planned = {}
    supervised.attempt()
    supervised.check()
