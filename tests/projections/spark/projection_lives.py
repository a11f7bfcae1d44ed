"""Catch-ups on Spark that are killed: each is held at a step of its own, and when all are held the process dies.

A JVM takes most of the time of a life that is killed, so several catch-ups share one, each in a thread of its own and
over a store of its own.
"""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import Any

from ledgers import LETTERS, Ledger, opened

from holdfast.base.steps import observe, step
from holdfast.spark import ProjectionRunner
from holdfast.testing.faults.crash import Acknowledge, Moment, StepEvent
from sparks import QUICK_START, make_session

ALL_HELD = Moment(StepEvent("everybody.held", "begin"))
"""Where to kill the process."""


def catch_up(store: Any, spark: Any) -> None:
    ProjectionRunner(store, spark, on_error=LETTERS).catch_up_persistent(Ledger())


class Holding:
    """Stops each thread for good at one of its steps, by their number, and knows when all have come to theirs."""

    def __init__(self, held_at: dict[str, int]) -> None:
        self._held_at = held_at
        self._seen = dict.fromkeys(held_at, 0)
        self.arrived: queue.Queue[tuple[str, list[str]]] = queue.Queue()

    def look(self, name: str, phase: str, _: float) -> None:
        thread = threading.current_thread().name
        if thread not in self._held_at:
            return
        self._seen[thread] += 1
        if self._seen[thread] == self._held_at[thread] + 1:
            self.arrived.put((thread, [name, phase]))
            threading.Event().wait()


def held_together(acknowledge: Acknowledge, root: str, held_at: dict[str, int]) -> None:
    """A catch-up per store, until each has come to its step."""
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_START  # for the JVM that finds out the command line, too
    spark = make_session(Path(root, "spark"))
    holding = Holding(held_at)
    stores = {name: opened(Path(root, name)) for name in held_at}
    observe(holding.look)
    for name, store in stores.items():
        threading.Thread(target=catch_up, args=(store, spark), name=name, daemon=True).start()
    for _ in stores:
        name, event = holding.arrived.get()
        acknowledge(f"{name} {' '.join(event)}")
    with step("everybody.held"):
        pass
