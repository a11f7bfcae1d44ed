"""Reports never fail what they report on."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.steps import step
from holdfast.pipeline.dead_letters import RefusedCount
from holdfast.pipeline.query_run import QueryRun
from holdfast.pipeline.reports import EpochReport, Notice, StepClock, tell, watch
from holdfast.pipeline.workdir.local import LocalWorkdir

QUERY = SimpleNamespace(sources=(), is_deterministic=True)


class Query:
    """Spark's query: each of its answers is what the test says, or an error."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def progress(batch: int, **changes: Any) -> dict[str, Any]:
    given = {
        "batchId": batch,
        "numInputRows": 12,
        "processedRowsPerSecond": 4.0,
        "durationMs": {"triggerExecution": 3000},
        "sources": [],
    }
    return given | changes


def query_run(tmp_path: Path, query: Query) -> QueryRun:
    definition = SimpleNamespace(name="shop", sinks={})
    prepared: Any = SimpleNamespace(definition=definition, query=QUERY, description=SimpleNamespace(state=()))
    coordinator: Any = SimpleNamespace(newest=None)
    heartbeat: Any = SimpleNamespace(fenced=None)  # it has no part in reports
    run = QueryRun(
        prepared,
        coordinator,
        workdir=LocalWorkdir(tmp_path),
        generation=1,
        lineage=0,
        replays=False,
        heartbeat=heartbeat,
    )
    run.query = query  # type: ignore[assignment]
    return run


def test_a_report_that_cannot_be_made_is_left_out_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    garbled = progress(0, numInputRows="many")
    run = query_run(tmp_path, Query(RuntimeError("no answer"), RuntimeError("no answer"), garbled, progress(1)))
    told: list[int] = []
    stop = watch(lambda event: told.append(event.epoch) if isinstance(event, EpochReport) else None)
    try:
        for batch in (0, 0, 0, 1):
            run._done[batch] = ({}, False, RefusedCount([]))
            run.report()
    finally:
        stop()
    assert told == [2]
    assert [record.getMessage() for record in caplog.records] == ["shop: an epoch could not be reported"]


def test_a_watcher_that_fails_is_logged_once_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []

    def fail(_: object) -> None:
        raise ZeroDivisionError

    stops = [watch(fail), watch(told.append)]
    try:
        with caplog.at_level(logging.WARNING):
            for text in ("one", "two"):
                tell(Notice("shop", text))
    finally:
        for stop in stops:
            stop()
    assert told == [Notice("shop", "one"), Notice("shop", "two")]
    assert len(caplog.records) == 1
    assert "no epoch fails of it" in caplog.text


def test_the_timings_of_two_pipelines_in_one_process_are_kept_apart() -> None:
    clocks = {"a": StepClock(), "b": StepClock()}
    both_are_in = threading.Barrier(2)

    def work(name: str) -> None:
        with clocks[name].running():
            both_are_in.wait(60)
            with step(f"{name}.stage"):
                both_are_in.wait(60)

    threads = [threading.Thread(target=work, args=(name,)) for name in clocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: [*clock.taken()] for name, clock in clocks.items()} == {"a": ["a.stage"], "b": ["b.stage"]}
    assert clocks["a"].taken() == {}
