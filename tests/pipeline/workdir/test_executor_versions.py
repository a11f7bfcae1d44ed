"""Driver and executors run the same versions, or the start is refused in words."""

from __future__ import annotations

import sys

import msgspec
import pyspark
import pytest

import holdfast
from holdfast.pipeline.workdir.executor_versions import Versions, python_refusal, version_refusal, versions_here

DRIVER = Versions("0.2.0", "3.12", "4.1.0")
MISMATCH = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent
failure: Lost task 0.3 in stage 0.0 (TID 3) (10.1.2.3 executor 1): org.apache.spark.api.python.PythonException:
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: \
3.11 than that in driver: 3.12, PySpark cannot run with different minor versions.
Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set."""


def test_the_same_versions_are_fine() -> None:
    assert version_refusal("node-3", DRIVER, DRIVER) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"holdfast": "0.1.9"}, "Holdfast 0.1.9, and the driver 0.2.0"),
        ({"python": "3.11"}, "Python 3.11, and the driver 3.12"),
        ({"pyspark": "4.1.1"}, "PySpark 4.1.1, and the driver 4.1.0"),
        (
            {"holdfast": "0.3.0", "pyspark": "4.0.2"},
            "Holdfast 0.3.0, and the driver 0.2.0; PySpark 4.0.2, and the driver 4.1.0",
        ),
    ],
    ids=str,
)
def test_any_other_is_refused(change: dict[str, str], words: str) -> None:
    refusal = version_refusal("node-3", DRIVER, msgspec.structs.replace(DRIVER, **change))
    assert refusal is not None
    assert refusal.code == "executor.version"
    assert refusal.message == f"The executor on node-3 has {words}."
    assert "same Python environment" in (refusal.next_step or "")


def test_an_executor_that_tells_no_versions_is_refused() -> None:
    assert version_refusal("node-3", DRIVER, Versions()) is not None


def test_sparks_own_words_for_another_python() -> None:
    refusal = python_refusal(MISMATCH)
    assert refusal is not None
    assert refusal.code == "executor.version"
    assert refusal.message == "The executor on 10.1.2.3 has Python 3.11, and the driver 3.12."
    assert python_refusal("ModuleNotFoundError: No module named 'holdfast'") is None


def test_the_versions_of_this_process() -> None:
    python = ".".join(map(str, sys.version_info[:2]))
    assert versions_here() == Versions(holdfast.__version__, python, pyspark.__version__)
