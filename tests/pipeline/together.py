"""Several pipelines in one process, each held at a step of its own until all are; then the process dies.

A JVM takes most of the time of a life that is killed. Held in the middle of a step, a pipeline is where it would be if
it were killed there alone, and it stays there until the kill.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
from works import PIPELINES, PROVIDERS, RESTLESS, Session

from holdfast.base.steps import observe, step
from holdfast.spark import EpochReport, watch
from holdfast.testing.faults.crash import Acknowledge, Moment, StepEvent

ALL_HELD = Moment(StepEvent("everybody.held", "begin"))
"""Where to kill the process."""
COPYING = "files.copy"
"""A step with threads that take steps of their own, in a copy of its context."""
_copies_for: ContextVar[str] = ContextVar("copies_for", default="")


class Member(msgspec.Struct, frozen=True):
    """One of the pipelines."""

    root: str
    work: str
    provider: str
    moment: Moment | None
    """Where it is held; None if it runs to the end of its orders."""


class Holding:
    """Stops each pipeline for good at its moment, and knows when all have come to theirs."""

    def __init__(self, spark: Any, moments: Mapping[str, Moment]) -> None:
        self._context = spark.sparkContext
        self._moments = moments
        self._waits_for = {name: moment.since for name, moment in moments.items()}
        self._left = {name: moment.nth for name, moment in moments.items()}
        self.arrived: queue.Queue[tuple[str, str]] = queue.Queue()

    def look(self, step_name: str, phase: Any, _: float) -> None:
        event = StepEvent(step_name, phase)
        if step_name == COPYING:
            _copies_for.set(self._name_of_pipeline())
        if not any(event in (moment.event, moment.since) for moment in self._moments.values()):
            return
        name = self._name_of_pipeline()
        if name not in self._moments:
            return
        if self._waits_for[name] is not None:
            if event == self._waits_for[name]:
                self._waits_for[name] = None
            return
        if event == self._moments[name].event:
            self._left[name] -= 1
            if self._left[name] == 0:
                self.arrived.put((name, "held"))
                threading.Event().wait()

    def _name_of_pipeline(self) -> str:
        """Whose thread this is: one that starts it has its name, Spark describes those that run its batches with it."""
        if threading.current_thread().name.startswith("holdfast-copy"):
            return _copies_for.get()
        described: str | None = self._context.getLocalProperty("spark.job.description")
        return described.splitlines()[0] if described else threading.current_thread().name


def together(acknowledge: Acknowledge, members: dict[str, Any], orders: str) -> None:
    """Run the pipelines, by name, until each is held or has come to the end of its orders."""
    wanted = {name: msgspec.convert(member, Member) for name, member in members.items()}
    moments = {name: member.moment for name, member in wanted.items() if member.moment}
    first = next(iter(wanted.values()))
    opened = Session(Path(first.root), first.provider)
    holding = Holding(opened.spark, moments)
    observe(holding.look)
    watch(
        lambda event: acknowledge(f"{event.pipeline} epoch {event.epoch}") if isinstance(event, EpochReport) else None
    )

    def run(name: str, member: Member) -> None:
        end = "failed"
        try:
            own = opened.spark.newSession()
            for setting, value in (PROVIDERS[member.provider] | RESTLESS).items():
                own.conf.set(setting, value)
            pipeline, frame = PIPELINES[member.work](own, name, Path(member.root), orders)
            pipeline.run(frame, output_mode="update", trigger={"availableNow": True})
            end = "ended"
        finally:
            holding.arrived.put((name, end))

    for name, member in wanted.items():
        threading.Thread(target=run, args=(name, member), name=name, daemon=True).start()
    for _ in wanted:
        name, end = holding.arrived.get()
        acknowledge(f"{name} {end}")
        assert end == ("held" if name in moments else "ended"), f"{name} {end}, though it was to be {moments.get(name)}"
    if moments:
        with step(ALL_HELD.event.name):
            raise AssertionError("still alive")
    opened.end()
