"""A supervised driver that was taken over stays down, whatever error it ends with. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_store
from holdfast.errors import Conflict, Corrupt, Fenced, OutcomeUnknown, Unavailable
from holdfast.pipeline import supervisor
from holdfast.pipeline.definition import PipelineDefinition, PreparedPipeline
from holdfast.pipeline.query.plan import Query
from holdfast.pipeline.start import take_over
from holdfast.pipeline.supervisor import Supervisor
from holdfast.pipeline.workdir.local import LocalWorkdir


class Ended:
    """A query that has ended with an error, or well."""

    query = None
    epochs = 0
    replays = True
    has_called_back = False

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def await_end(self, timeout: float | None = None) -> bool:
        return True

    def raise_failure(self) -> None:
        if self._error:
            raise self._error

    def ask_to_stop(self) -> None:
        """It has ended."""


class Drivers:
    """Supervised drivers of one store that take it over for real; their queries end as a test wants."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.ends: Iterator[Any] = iter(())
        self.starts: list[int] = []
        monkeypatch.setattr(supervisor, "PAUSES", (0.0,))
        monkeypatch.setattr(supervisor, "preflight", lambda definition: _prepared(definition))
        monkeypatch.setattr(supervisor, "start", self._start)

    def make(self, restarts: int = 3) -> Supervisor:
        definition = PipelineDefinition(
            name="orders",
            frame=None,
            output_mode="append",
            trigger={},
            store=open_store(self.place / "store"),
            access=None,
            workdir=LocalWorkdir(self.place / "workdir"),
            sources={},
            tables={},
            operators={},
            sinks={},
            on_change="fail",
        )
        return Supervisor(definition, restarts=restarts)

    def _start(self, prepared: PreparedPipeline) -> Any:
        definition = prepared.definition
        self.starts.append(take_over(definition.store, definition.workdir, definition.name).generation)
        return Ended(next(self.ends)())


def _prepared(definition: PipelineDefinition) -> PreparedPipeline:
    query = Query((), "", [], "", [], {}, is_deterministic=True)
    description: Any = None  # nothing is compared here
    return PreparedPipeline(definition=definition, query=query, description=description, initial_states={})


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drivers:
    return Drivers(tmp_path, monkeypatch)


ERRORS = [
    Unavailable("the sink is away"),
    Conflict("somebody else decided the epoch", code="epoch.decided-elsewhere"),
    OutcomeUnknown("no answer"),
    Corrupt("offsets/4 is torn", code="workdir.log"),
    Fenced("another driver has it"),
    RuntimeError("ExecutorLostFailure"),
    RuntimeError("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."),
    RuntimeError("java.io.FileNotFoundException: the link is gone"),  # before its first batch
    None,  # Spark has stopped the query without a word
]


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_one_that_was_taken_over_does_not_come_back(drivers: Drivers, error: Exception | None) -> None:
    first, second = drivers.make(), drivers.make()

    def taken_over() -> Exception | None:
        second.run()
        return error

    drivers.ends = iter((taken_over, lambda: None))
    with pytest.raises(Fenced, match=r"taken over by|another driver has it"):
        first.run()
    assert drivers.starts == [1, 2]


def test_nor_if_the_store_does_not_answer_when_it_fails(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = drivers.make(), drivers.make()
    store = first._definition.store
    real, is_away = store.check_lease, False

    def check_lease() -> None:
        nonlocal is_away
        if is_away:
            is_away = False
            raise Unavailable("the store is away")
        real()

    monkeypatch.setattr(store, "check_lease", check_lease)

    def taken_over() -> Exception:
        nonlocal is_away
        second.run()
        is_away = True
        return Unavailable("the store is away")

    drivers.ends = iter((taken_over, lambda: None))
    with pytest.raises(Fenced, match="taken over by"):
        first.run()
    assert not is_away
    assert drivers.starts == [1, 2]


def test_one_that_was_not_taken_over_does(drivers: Drivers) -> None:
    """And does not say that it took over from itself."""
    drivers.ends = iter((lambda: Unavailable("the sink is away"), lambda: None))
    drivers.make().run()
    assert drivers.starts == [1, 2]


def test_a_run_says_its_state(drivers: Drivers) -> None:
    run = drivers.make().handle
    assert repr(run) == "Run('orders', not started, 0 epochs)"
    drivers.ends = iter((lambda: None,))
    run.begin()
    assert repr(run) == "Run('orders', ended, 0 epochs)"


class Gone(Ended):
    """A query whose JVM is gone."""

    epochs = 1

    @property
    def query(self) -> Any:  # type: ignore[override]
        raise ConnectionError


def test_a_run_whose_spark_is_gone_can_be_shown(drivers: Drivers) -> None:
    run = drivers.make().handle
    drivers.ends = iter((lambda: None,))
    run.begin()
    run._query_run = Gone(None)  # type: ignore[assignment]
    assert repr(run) == "Run('orders', unknown, 1 epoch)"
