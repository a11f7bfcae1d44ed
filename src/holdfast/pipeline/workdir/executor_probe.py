"""Proof that every executor sees the workdir: a cluster without a shared disk would write its state where nobody looks.

State that executors keep on disks of their own is never captured, and Spark does not notice: its tasks find their own
files again as long as they run where they ran before.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from holdfast.base.jvm import default_parallelism, executor_count, is_one_process, run_on_executors
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid, one_line
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.workdir import PROBE, Workdir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 3
HOLD = 0.2
"""Seconds that a task keeps its core, so that the others go to other executors."""


class Answer(msgspec.Struct, frozen=True):
    """What one task found."""

    host: str
    executor: int
    """The process that started the Python worker: another one on each executor."""
    problem: str | None
    """Why the workdir cannot be used from there; None if it can."""


def check_executors_see(workdir: Workdir, spark: SparkSession) -> None:
    """`Invalid` if an executor cannot read what the driver writes into the workdir, or the driver not what it writes.

    One small job, on clusters only. Does not guarantee anything about executors that come later: the snapshot of each
    epoch refuses state that is missing.
    """
    if is_one_process(spark) or not isinstance(workdir, LocalWorkdir):
        return
    with step("workdir.probe"):
        probe = workdir.path / f"{PROBE}{uuid.uuid4().hex}"
        probe.mkdir()
        try:
            (probe / "driver").write_text(probe.name)
            _ask(_Probe(str(probe)), workdir, spark)
        finally:
            workdir.remove_probes()


def _ask(probe: _Probe, workdir: Workdir, spark: SparkSession) -> None:
    """Run rounds of tasks until every executor has answered, or for as many rounds as are reasonable."""
    answered: set[tuple[str, int]] = set()
    for _ in range(ROUNDS):
        tasks = max(default_parallelism(spark), executor_count(spark))
        for answer in _run(probe, tasks, workdir, spark):
            problem = answer.problem or probe.problem_with(answer)
            if problem is not None:
                raise _not_shared(workdir, answer.host, problem)
            answered.add((answer.host, answer.executor))
        if len(answered) >= executor_count(spark):
            return


def _run(probe: _Probe, tasks: int, workdir: Workdir, spark: SparkSession) -> list[Answer]:
    try:
        return run_on_executors(spark, probe, list(range(tasks)))
    except HoldfastError:
        raise
    except Exception as error:
        if "ModuleNotFoundError" not in str(error):
            raise
        raise Invalid(
            f"An executor cannot load what it needs: {_missing_module(error)}.",
            code="executor.package",
            about="executors",
            unchanged="every checkpoint and every sink",
            next_step="install the same Holdfast, with the same extras, in the Python of the executors "
            "(spark.pyspark.python, or an archive with spark.archives)",
        ) from error


class _Probe:
    """What an executor does: read the driver's file, write one of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, task: int) -> Answer:
        time.sleep(HOLD)
        return Answer(socket.gethostname(), os.getppid(), self._problem_here())

    def _problem_here(self) -> str | None:
        try:
            with open(os.path.join(self._folder, "driver")) as file:
                found = file.read()
        except OSError as error:
            return f"it cannot read what the driver wrote there: {error.strerror}"
        if found != os.path.basename(self._folder):
            return "it reads something else there than the driver wrote"
        try:
            with open(os.path.join(self._folder, _name(socket.gethostname(), os.getppid())), "w"):
                return None
        except OSError as error:
            return f"it cannot write there: {error.strerror}"

    def problem_with(self, answer: Answer) -> str | None:
        """Why the driver does not see what an executor wrote; None if it does."""
        there = os.path.exists(os.path.join(self._folder, _name(answer.host, answer.executor)))
        return None if there else "the driver does not see what it wrote there"


def _name(host: str, executor: int) -> str:
    return f"{host}-{executor}"


def _missing_module(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "ModuleNotFoundError" in line]
    return lines[-1].removeprefix("ModuleNotFoundError:").strip().rstrip(".") if lines else one_line(error)


def _not_shared(workdir: Workdir, host: str, problem: str) -> Invalid:
    return Invalid(
        f"The executor on {host} does not share the workdir {workdir.address} with the driver: {problem}.",
        code="workdir.not-shared",
        about=workdir.address,
        unchanged="every checkpoint and every sink",
        next_step="pass a workdir on a disk that the driver and all executors see under one path, "
        "or run on one machine: master local[*]",
    )
