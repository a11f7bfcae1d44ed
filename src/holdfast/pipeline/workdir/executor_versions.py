"""The versions that driver and executors have to share: what one pickles, the other has to understand.

Executors load Holdfast from their own Python. With another release they would pack state, stage rows or read batches in
another way, and fail late or, worse, not at all.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.codec import converted
from holdfast.base.jvm import default_parallelism, executor_count, is_one_process, run_on_executors
from holdfast.base.version import VERSION
from holdfast.errors import HoldfastError, Invalid, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOLD = 0.2
"""Seconds that a task keeps its core, so that the others go to other executors."""

_PYTHON = re.compile(r"Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+)")
_TASK = re.compile(r"\(TID \d+\) \((\S+) executor")
_NOT_LOADED = re.compile(r"ModuleNotFoundError: |AttributeError: Can't get attribute ")
"""A module that is not installed there, or an older release of it."""
_UNKNOWN = "of an unknown version"


class Versions(msgspec.Struct, frozen=True):
    """What runs on the driver or on an executor."""

    holdfast: str = _UNKNOWN
    python: str = _UNKNOWN
    """Without the last number: releases of one minor version understand each other."""
    pyspark: str = _UNKNOWN


class Answer(msgspec.Struct, frozen=True):
    """What one task found."""

    host: str
    executor: int
    """The process that started the Python worker: another one on each executor."""
    problem: str | None
    """Why a place cannot be used from there; None if all can."""
    versions: Versions = Versions()
    place: int = 0
    """Which place has the problem."""


def versions_here() -> Versions:
    """The versions of this process."""
    import pyspark

    return Versions(VERSION, f"{sys.version_info.major}.{sys.version_info.minor}", pyspark.__version__)


def version_refusal(host: str, driver: Versions, executor: Versions) -> Invalid | None:
    """`Invalid` if an executor runs other versions than the driver, None if they are the same. Pure."""
    pairs = [
        ("Holdfast", driver.holdfast, executor.holdfast),
        ("Python", driver.python, executor.python),
        ("PySpark", driver.pyspark, executor.pyspark),
    ]
    differences = [f"{what} {there}, and the driver {here}" for what, here, there in pairs if here != there]
    return _refusal(host, "; ".join(differences)) if differences else None


def python_refusal(text: str) -> Invalid | None:
    """`Invalid` if an error of Spark's, as text, says that an executor has another Python; None if it does not. Pure.

    Spark compares that itself, before it calls any function, and does not always say where.
    """
    found = _PYTHON.search(text)
    if found is None:
        return None
    task = _TASK.search(text)
    return _refusal(task[1] if task else None, f"Python {found[1]}, and the driver {found[2]}")


def check_executor_versions(spark: SparkSession) -> None:
    """`Invalid` if an executor runs another Holdfast, PySpark or minor version of Python than the driver.

    One small job, on clusters only. Does not guarantee anything about executors that are not there yet: they are
    compared by `check_executors_see`.
    """
    if not is_one_process(spark):
        ask_executors(answer_here, spark)


def ask_executors(question: Callable[[int], dict[str, Any]], spark: SparkSession) -> list[Answer]:
    """The answers of executors to a question, which each of them returns as `answer_here` does.

    `Invalid` if one of them runs other versions than the driver.
    """
    tasks = max(default_parallelism(spark), executor_count(spark))
    try:
        answers = [converted(found, Answer) for found in run_on_executors(spark, question, list(range(tasks)))]
    except HoldfastError:
        raise
    except Exception as error:
        if refusal := python_refusal(str(error)):
            raise refusal from error
        if not _NOT_LOADED.search(str(error)):
            raise
        raise Invalid(
            f"An executor cannot load what it needs: {_missing_module(error)}.",
            code="executor.package",
            about="executors",
            unchanged="every checkpoint and every sink",
            next_step="install the same Holdfast, with the same extras, in the Python of the executors "
            "(spark.pyspark.python, or an archive with spark.archives)",
        ) from error
    for answer in answers:
        if refusal := version_refusal(answer.host, versions_here(), answer.versions):
            raise refusal
    return answers


def answer_here(task: int, problem: str | None = None, place: int = 0) -> dict[str, Any]:
    """An `Answer` as plain values: another release may have another class of that name, which cannot be unpickled."""
    time.sleep(HOLD)
    answer = Answer(socket.gethostname(), os.getppid(), problem, versions_here(), place)
    found: dict[str, Any] = msgspec.to_builtins(answer)
    return found


def _refusal(host: str | None, what: str) -> Invalid:
    return Invalid(
        f"{f'The executor on {host}' if host else 'An executor'} has {what}.",
        code="executor.version",
        about=f"executor on {host}" if host else "executors",
        unchanged="every checkpoint and every sink",
        next_step="give driver and executors the same Python environment (spark.pyspark.python, or an archive with "
        "spark.archives), or install the driver's versions there",
    )


def _missing_module(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if _NOT_LOADED.search(line)]
    return _NOT_LOADED.sub("", lines[-1]).strip().rstrip(".") if lines else one_line(error)
