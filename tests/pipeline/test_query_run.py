"""One run of a query: its end is what ended it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import Unavailable
from holdfast.pipeline.query_run import QueryRun
from holdfast.pipeline.workdir.local import LocalWorkdir

QUERY = SimpleNamespace(sources=(), is_deterministic=True)


class EndedQuery:
    """Spark's query after its end."""

    isActive = False  # noqa: N815
    lastProgress = None  # noqa: N815

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure

    def awaitTermination(self, seconds: float) -> None:  # noqa: N802
        pass

    def exception(self) -> Exception | None:
        return self._failure


class Ending:
    """What a run asks at its end: a coordinator that cannot leave stamps, and a heartbeat."""

    newest = None
    fenced = None

    def __init__(self, problem: Exception) -> None:
        self._problem = problem
        self.has_stopped = False

    def leave_stamps(self, *, is_clean: bool) -> None:
        raise self._problem

    def stop(self) -> None:
        self.has_stopped = True


@pytest.mark.parametrize("problem", [OSError("no room"), RuntimeError("changed size during iteration")], ids=repr)
@pytest.mark.parametrize("failure", [None, Unavailable("The sink is away.")], ids=repr)
def test_stamps_that_cannot_be_written_do_not_replace_the_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, problem: Exception, failure: Exception | None
) -> None:
    definition = SimpleNamespace(name="shop", sinks={})
    prepared: Any = SimpleNamespace(definition=definition, query=QUERY, description=SimpleNamespace(state=()))
    ending: Any = Ending(problem)
    run = QueryRun(
        prepared, ending, workdir=LocalWorkdir(tmp_path), generation=1, lineage=0, replays=False, heartbeat=ending
    )
    run.query = EndedQuery(failure)  # type: ignore[assignment]
    assert run.await_end()
    assert ending.has_stopped
    if failure is None:
        run.raise_failure()
    else:
        with pytest.raises(Unavailable):
            run.raise_failure()
    assert "the workdir's stamps could not be written" in caplog.text


class StampingCoordinator:
    """Remembers how it was asked to leave stamps."""

    newest = None

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def leave_stamps(self, *, is_clean: bool) -> None:
        self.asked.append(is_clean)


@pytest.mark.parametrize("has_ended", [True, False])
def test_stamps_are_left_once_and_as_clean_only_if_the_query_has_ended(tmp_path: Path, has_ended: bool) -> None:
    """Later it may be a successor's; and a query that is still ending may still write."""
    definition = SimpleNamespace(name="shop", sinks={})
    prepared: Any = SimpleNamespace(definition=definition, query=QUERY, description=SimpleNamespace(state=()))
    stamping: Any = StampingCoordinator()
    ending: Any = Ending(OSError())
    run = QueryRun(
        prepared, stamping, workdir=LocalWorkdir(tmp_path), generation=1, lineage=0, replays=False, heartbeat=ending
    )
    query: Any = EndedQuery(None)
    query.awaitTermination = lambda _: has_ended
    run.query = query
    assert run.await_end()
    assert run.await_end()
    assert stamping.asked == [has_ended]
