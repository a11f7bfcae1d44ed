"""Who is asked whether it sees the workdir, how long a start waits for executors, and what it says of the others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Invalid, Unavailable
from holdfast.pipeline.workdir import executor_probe, executor_versions
from holdfast.pipeline.workdir.executor_probe import (
    LATE,
    PATIENCE,
    SETTLED,
    RollCall,
    SinkPath,
    check_executors_see,
    check_executors_share,
    expected_executors,
)
from holdfast.pipeline.workdir.executor_versions import check_executor_versions
from holdfast.pipeline.workdir.local import LocalWorkdir

STANDALONE = {"spark.master": "spark://host:7077"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"spark.master": "local-cluster[3,1,1024]"}, 3),
        ({"spark.master": "yarn"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "7"}, 7),
        ({"spark.master": "k8s://https://host:443"}, 2),
        (STANDALONE, None),
        (STANDALONE | {"spark.cores.max": "8"}, None),
        (STANDALONE | {"spark.cores.max": "8", "spark.executor.cores": "3"}, 2),
        (STANDALONE | {"spark.executor.instances": "5", "spark.cores.max": "8", "spark.executor.cores": "2"}, 5),
        ({"spark.master": "yarn", "spark.executor.instances": "7", "spark.dynamicAllocation.enabled": "true"}, None),
        ({"spark.master": "yarn", "spark.executor.instances": "many"}, 2),
        ({}, None),
    ],
    ids=str,
)
def test_how_many_executors_the_settings_promise(settings: dict[str, str], expected: int | None) -> None:
    assert expected_executors(settings) == expected


def call(answered: int, registered: int, expected: int | None = None) -> RollCall:
    return RollCall([f"host-{number}" for number in range(answered)], registered, expected)


@pytest.mark.parametrize(
    ("roll", "quiet", "is_over"),
    [
        (call(2, 2, expected=2), 0.0, True),
        (call(1, 1, expected=2), LATE - 0.1, False),  # one is still to come
        (call(1, 1, expected=2), LATE, True),
        (call(1, 2, expected=2), LATE - 0.1, False),  # one does not answer
        (call(1, 2, expected=2), LATE, True),
        (call(2, 2), SETTLED - 0.1, False),  # another may come
        (call(2, 2), SETTLED, True),
        (call(1, 2), SETTLED, False),
        (call(0, 0), SETTLED, False),
        (call(3, 3, expected=2), 0.0, True),
    ],
    ids=str,
)
def test_how_long_executors_are_waited_for(roll: RollCall, quiet: float, is_over: bool) -> None:
    assert roll.is_over(quiet, quiet) is is_over
    assert roll.is_over(PATIENCE, 0.0)  # where executors come and go for ever


def test_nothing_to_say_when_all_have_answered() -> None:
    assert call(2, 2, expected=2).warning() is None
    assert call(2, 2).warning() is None


def test_executors_that_were_not_asked_are_counted() -> None:
    silent = RollCall(["b", "a", "a"], 4, None).warning()
    assert silent is not None
    assert "1 executor did not answer. Those that answered see it (on a, b)." in silent
    absent = call(1, 1, expected=3).warning()
    assert absent is not None
    assert "2 executors of 3 had not come yet. Those that answered see it (on host-0)." in absent
    both = call(0, 1, expected=2).warning()
    assert both is not None
    assert "1 executor did not answer and 1 executor of 2 had not come yet." in both


# Asking

SPARK: Any = None
Run = Callable[[object, Callable[[int], Any], list[int]], list[Any]]


@pytest.fixture
def two_executors(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """A cluster on which two executors have registered, and tasks are run as the test says."""

    def run_with(run: Run) -> None:
        monkeypatch.setattr(executor_versions, "run_on_executors", run)

    monkeypatch.setattr(executor_probe, "LATE", 0.5)
    monkeypatch.setattr(executor_versions, "HOLD", 0.0)
    monkeypatch.setattr(executor_probe, "active_settings", dict)
    for module in (executor_probe, executor_versions):
        monkeypatch.setattr(module, "is_one_process", lambda _: False)
        monkeypatch.setattr(module, "executor_count", lambda _: 2)
    monkeypatch.setattr(executor_versions, "default_parallelism", lambda _: 4)
    return run_with


def test_an_executor_that_never_answers_does_not_hold_a_start_for_ever(
    tmp_path: Path, two_executors: Callable[[Run], None]
) -> None:
    """All tasks go to one of the two."""
    rounds = []

    def run(_: object, probe: Callable[[int], Any], tasks: list[int]) -> list[Any]:
        rounds.append(len(tasks))
        return [probe(task) for task in tasks]

    two_executors(run)
    said = check_executors_see(LocalWorkdir(tmp_path), SPARK)
    assert said is not None
    assert f"1 executor did not answer. Those that answered see it (on {socket.gethostname()})." in said
    assert set(rounds) == {4}
    assert len(rounds) > 1
    assert list(tmp_path.iterdir()) == []


def sees(other: Path, hidden: Path) -> Run:
    """Executors that have another directory where the driver has the hidden one."""

    def run(_: object, probe: Callable[[int], Any], tasks: list[int]) -> list[Any]:
        aside = hidden.with_name("aside")
        hidden.rename(aside)
        other.rename(hidden)
        try:
            return [probe(task) for task in tasks]
        finally:
            hidden.rename(other)
            aside.rename(hidden)

    return run


def test_sinks_on_paths_that_executors_share(tmp_path: Path, two_executors: Callable[[Run], None]) -> None:
    two_executors(lambda _, probe, tasks: [probe(task) for task in tasks])
    paths = [tmp_path / "files", tmp_path / "table"]
    check_executors_share([SinkPath(path.name, str(path)) for path in paths], SPARK)
    assert [list(path.iterdir()) for path in paths] == [[], []]


def test_a_sink_on_a_path_that_executors_do_not_share(tmp_path: Path, two_executors: Callable[[Run], None]) -> None:
    """The second of two. Probes of other drivers stay where they are."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    theirs = own / ".holdfast-probe-of-another-driver"
    theirs.mkdir(parents=True)
    (tmp_path / "other").mkdir()
    two_executors(sees(tmp_path / "other", own))
    with pytest.raises(Invalid, match=r"does not share .*/own, where sink 'table' writes.*: it cannot read") as refused:
        check_executors_share([SinkPath("files", str(shared)), SinkPath("table", str(own))], SPARK)
    assert refused.value.code == "sink.not-shared"
    assert refused.value.unchanged == "every checkpoint and every sink"
    assert list(own.iterdir()) == [theirs]
    assert list(shared.iterdir()) == []


def test_a_sink_that_sees_nothing_of_what_executors_write(tmp_path: Path, two_executors: Callable[[Run], None]) -> None:
    def run(_: object, probe: Callable[[int], Any], tasks: list[int]) -> list[Any]:
        answers = [probe(task) for task in tasks]
        for written in tmp_path.glob(f"*/*/{socket.gethostname()}-*"):
            written.unlink()
        return answers

    two_executors(run)
    with pytest.raises(Invalid, match="the driver does not see what it wrote there"):
        check_executors_share([SinkPath("files", str(tmp_path / "files"))], SPARK)


def test_a_path_that_cannot_be_made(tmp_path: Path, two_executors: Callable[[Run], None]) -> None:
    two_executors(failing("nobody is asked"))
    (tmp_path / "file").write_text("a file")
    with pytest.raises(Unavailable) as refused:
        check_executors_share([SinkPath("files", str(tmp_path / "file"))], SPARK)
    assert refused.value.code == "sink.disk"


def failing(text: str) -> Run:
    def run(_: object, probe: Callable[[int], Any], tasks: list[int]) -> list[Any]:
        raise RuntimeError(text)

    return run


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "Traceback\nModuleNotFoundError: No module named 'holdfast'",
            "executor.package",
            "No module named 'holdfast'",
        ),
        (
            "Traceback\nAttributeError: Can't get attribute '_answer' on <module 'holdfast.x' from '/x.py'>",
            "executor.package",
            "'_answer' on <module 'holdfast.x' from '/x.py'>",
        ),
        (
            "Python in worker has different version: 3.11 than that in driver: 3.12, PySpark cannot run",
            "executor.version",
            "An executor has Python 3.11, and the driver 3.12.",
        ),
    ],
)
def test_executors_that_cannot_answer(
    tmp_path: Path, two_executors: Callable[[Run], None], text: str, code: str, words: str
) -> None:
    two_executors(failing(text))
    for ask in (lambda: check_executor_versions(SPARK), lambda: check_executors_see(LocalWorkdir(tmp_path), SPARK)):
        with pytest.raises(Invalid) as refused:
            ask()
        assert refused.value.code == code
        assert words in refused.value.message
    two_executors(failing("out of memory"))
    with pytest.raises(RuntimeError):
        check_executor_versions(SPARK)


def test_an_answer_of_another_release(tmp_path: Path, two_executors: Callable[[Run], None]) -> None:
    two_executors(lambda _, probe, tasks: [{"host": "node-3", "executor": 7, "problem": None, "mood": "good"}])
    with pytest.raises(Invalid, match="The executor on node-3 has Holdfast of an unknown version") as refused:
        check_executor_versions(SPARK)
    assert refused.value.code == "executor.version"
