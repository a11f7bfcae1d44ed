"""Proof that every executor sees the workdir and the paths of sinks.

State that executors keep on disks of their own is never captured, and Spark does not notice: its tasks find their own
files again as long as they run where they ran before. Rows that they write to disks of their own are lost, and Spark
does not notice either.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.base.jvm import active_settings, executor_count, is_one_process
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid
from holdfast.pipeline.workdir.executor_versions import Answer, answer_here, ask_executors
from holdfast.pipeline.workdir.workdir import PROBE, Workdir
from holdfast.sinks.spark_write import SHARED_PLACES
from holdfast.sinks.staging import sink_disk_errors
from holdfast.storage.files.directory import Directory, LocalDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 60.0
"""Seconds: stop waiting for executors after this long in any case."""
LATE = 15.0
"""Seconds: stop waiting for missing or silent executors when none has come for this long."""
SETTLED = 2.0
"""Seconds: if the number is unknown, all are there when none has come for this long."""
POLL = 0.1
_DEFAULT_INSTANCES = 2
"""Of Spark's on YARN and Kubernetes."""


class SharedPlace(Protocol):
    """What executors have to share with the driver: a workdir, or the path of a sink."""

    @property
    def directory(self) -> Directory: ...

    def not_shared(self, host: str, problem: str) -> Invalid:
        """The error to raise."""


class WorkdirPlace(msgspec.Struct, frozen=True):
    """The workdir, as a `SharedPlace`."""

    workdir: Workdir

    @property
    def directory(self) -> Directory:
        return self.workdir.directory

    def not_shared(self, host: str, problem: str) -> Invalid:
        at = self.workdir.address
        return Invalid(
            f"The executor on {host} does not share the workdir {at} with the driver: {problem}.",
            code="workdir.not-shared",
            about=at,
            unchanged="every checkpoint and every sink",
            next_step=f"pass a workdir that the driver and all executors reach ({SHARED_PLACES}), or run on one "
            "machine: master local[*]",
        )


class SinkPath(msgspec.Struct, frozen=True):
    """A path that a sink writes to, as a `SharedPlace`."""

    sink: str
    path: str

    @property
    def directory(self) -> Directory:
        return LocalDirectory(self.path)

    def not_shared(self, host: str, problem: str) -> Invalid:
        return Invalid(
            f"The executor on {host} does not share {self.path}, where sink {self.sink!r} writes, with the driver: "
            f"{problem}. The rows that it writes there would be lost.",
            code="sink.not-shared",
            about=f"sink {self.sink!r}",
            unchanged="every checkpoint and every sink",
            next_step="give the sink a path (an IndexSink a staging directory, dead letters a checkpoint store) that "
            f"the driver and all executors reach ({SHARED_PLACES}), or run on one machine: master local[*]",
        )


class RollCall(msgspec.Struct, frozen=True):
    """Which executors there are, and how many have answered."""

    hosts: Collection[str]
    """Of those that have answered, one for each."""
    registered: int
    expected: int | None
    """None if Spark's settings do not say."""

    def is_over(self, waited: float, quiet: float) -> bool:
        """Whether to wait no longer, `waited` seconds after the beginning and `quiet` after the last executor came."""
        is_one_missing = len(self.hosts) < max(self.registered, self.expected or 1)
        limit = LATE if is_one_missing else 0.0 if self.expected is not None else SETTLED
        return waited >= PATIENCE or quiet >= limit

    def warning(self) -> str | None:
        """Who was not asked, in words; None if every executor has answered."""
        silent = max(self.registered - len(self.hosts), 0)
        absent = max((self.expected or 0) - self.registered, 0)
        if not silent and not absent:
            return None
        parts = [f"{_count(silent, 'executor')} did not answer"] if silent else []
        parts += [f"{_count(absent, 'executor')} of {self.expected} had not come yet"] if absent else []
        hosts = ", ".join(sorted(set(self.hosts))) or "none"
        return (
            f"Not every executor was asked whether it sees the workdir: {' and '.join(parts)}. Those that answered see "
            f"it (on {hosts}). State that another one keeps elsewhere will fail its epoch."
        )


def expected_executors(settings: Mapping[str, str]) -> int | None:
    """How many executors an application gets by its settings; None if they do not say. Pure.

    They do not say where executors come and go with the work, and where each worker of a standalone cluster starts one.
    """
    if settings.get("spark.dynamicAllocation.enabled", "").lower() == "true":
        return None
    master = settings.get("spark.master", "")
    if workers := re.match(r"local-cluster\[\s*(\d+)", master):
        return int(workers[1])
    instances = _number(settings.get("spark.executor.instances"))
    if instances is None and master.startswith(("yarn", "k8s:")):
        return _DEFAULT_INSTANCES
    limit, each = _number(settings.get("spark.cores.max")), _number(settings.get("spark.executor.cores"))
    if instances is None and limit and each and master.startswith("spark:"):
        return limit // each
    return instances


def check_executors_see(workdir: Workdir, spark: SparkSession) -> str | None:
    """`Invalid` if an executor cannot read what the driver writes into the workdir, or the driver not what it writes.

    Also if one runs another Holdfast, PySpark or minor version of Python than the driver.
    Small jobs, on clusters only, until every executor has answered that has registered or that Spark's settings
    promise, for a bounded time. Returns a warning, in words, if not all have; None if they have.
    Does not guarantee anything about executors that come later: the snapshot of each epoch refuses state that is
    missing.
    """
    if is_one_process(spark):
        return None
    with step("workdir.probe"):
        probe = _Probe([WorkdirPlace(workdir)])
        try:
            probe.begin()
            return _ask(probe, spark).warning()
        finally:
            workdir.remove_probes()


def check_executors_share(paths: Sequence[SinkPath], spark: SparkSession) -> None:
    """`Invalid` if an executor does not see the driver's files at a path that a sink writes to, or the driver not its.

    As `check_executors_see`, for all paths at once. It makes paths that are not there.
    Does not guarantee anything about executors that come later: a sink that stages finds out (`write_rows`).
    """
    if not paths or is_one_process(spark):
        return
    with step("sink.probe"):
        probe = _Probe(paths)
        try:
            with sink_disk_errors(", ".join(place.path for place in paths), "every checkpoint and every sink"):
                probe.begin()
            _ask(probe, spark)
        finally:  # not those of other drivers, which may be asking, too
            for place in paths:
                place.directory.remove_folders(probe.folder)


def _ask(probe: _Probe, spark: SparkSession) -> RollCall:
    """Run rounds of tasks, as long as there are executors that have not answered or may still come."""
    expected = expected_executors(active_settings())
    answered: dict[tuple[str, int], str] = {}
    registered = 0
    began = changed = time.monotonic()
    while True:
        if len(answered) < max(executor_count(spark), 1):
            for answer in ask_executors(probe, spark):
                probe.check(answer)
                answered[answer.host, answer.executor] = answer.host
        now = time.monotonic()
        if executor_count(spark) != registered:
            registered, changed = executor_count(spark), now
        call = RollCall(list(answered.values()), registered, expected)
        if call.is_over(now - began, now - changed):
            return call
        time.sleep(POLL)


class _Probe:
    """What an executor does at each place: read the driver's file, write one of its own."""

    def __init__(self, places: Sequence[SharedPlace]) -> None:
        self._places = places
        self.folder = f"{PROBE}{uuid.uuid4().hex}"

    def begin(self) -> None:
        """Write the driver's files."""
        for place in self._places:
            place.directory.write(f"{self.folder}/driver", self.folder.encode())

    def __call__(self, task: int) -> dict[str, Any]:
        for number, place in enumerate(self._places):
            if problem := self._problem_here(place.directory):
                return answer_here(task, problem, number)
        return answer_here(task)

    def _problem_here(self, directory: Directory) -> str | None:
        try:
            found = directory.read(f"{self.folder}/driver")
        except (OSError, HoldfastError) as error:
            return f"it cannot read what the driver wrote there: {_why(error)}"
        if found != self.folder.encode():
            return "it reads something else there than the driver wrote"
        try:
            directory.write(f"{self.folder}/{_name(socket.gethostname(), os.getppid())}", b"executor")
        except (OSError, HoldfastError) as error:
            return f"it cannot write there: {_why(error)}"
        return None

    def check(self, answer: Answer) -> None:
        """`Invalid` if the executor had a problem, or the driver does not see what it wrote."""
        if answer.problem:
            raise self._places[answer.place].not_shared(answer.host, answer.problem)
        for place in self._places:
            if not place.directory.exists(f"{self.folder}/{_name(answer.host, answer.executor)}"):
                raise place.not_shared(answer.host, "the driver does not see what it wrote there")


def _why(error: OSError | HoldfastError) -> str:
    return error.message.rstrip(".") if isinstance(error, HoldfastError) else error.strerror or str(error)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _name(host: str, executor: int) -> str:
    return f"{host}-{executor}"
