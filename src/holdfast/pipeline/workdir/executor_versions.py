"""The versions that driver and executors have to share: what one pickles, the other has to understand.

Executors load Holdfast from their own Python. With another release they would pack state, stage rows or read batches in
another way, and fail late or, worse, not at all.
"""

from __future__ import annotations

import re
import sys

import msgspec

from holdfast.base.version import VERSION
from holdfast.errors import Invalid

_PYTHON = re.compile(r"Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+)")
_TASK = re.compile(r"\(TID \d+\) \((\S+) executor")
_UNKNOWN = "of an unknown version"


class Versions(msgspec.Struct, frozen=True):
    """What runs on the driver or on an executor."""

    holdfast: str = _UNKNOWN
    python: str = _UNKNOWN
    """Without the last number: releases of one minor version understand each other."""
    pyspark: str = _UNKNOWN


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


def _refusal(host: str | None, what: str) -> Invalid:
    return Invalid(
        f"{f'The executor on {host}' if host else 'An executor'} has {what}.",
        code="executor.version",
        about=f"executor on {host}" if host else "executors",
        unchanged="every checkpoint and every sink",
        next_step="give driver and executors the same Python environment (spark.pyspark.python, or an archive with "
        "spark.archives), or install the driver's versions there",
    )
