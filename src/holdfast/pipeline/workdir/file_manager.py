"""How Spark writes its own files on object storage: quickly, and without losing any.

Spark's usual manager goes through Hadoop's `FileContext`, which asks the service two and a half times as often as the
other one for the same files. `AbortableStreamBasedCheckpointFileManager`, which cloud guides recommend, logs an error
of its last request and goes on: the query runs on with a hole in its state.

The quick manager has a fault of its own: if a task is tried again, it keeps the file of the first attempt and says that
it has written the second. Both hold the same state, unless the query is not deterministic: such a query is left to
Spark's usual manager if it keeps state. Then what is captured is what was delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.addresses import is_cloud
from holdfast.base.jvm import can_load
from holdfast.errors import Invalid
from holdfast.pipeline.workdir.workdir import Workdir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
_UNSAFE = "AbortableStreamBasedCheckpointFileManager"
_QUICK = "FileSystemBasedCheckpointFileManager"
_PACKAGES = (
    "org.apache.spark.sql.execution.streaming.checkpointing",
    "org.apache.spark.sql.execution.streaming",  # before Spark 4.1
)


def check_file_manager(workdir: Workdir, spark: SparkSession) -> None:
    """`Invalid` if Spark is told to write the workdir in a way that loses files without a word."""
    chosen = spark.conf.get(SETTING, None) or ""
    if is_cloud(workdir.address) and chosen.endswith(_UNSAFE):
        raise Invalid(
            f"{SETTING} is {_UNSAFE}: it logs the error of a file that it could not write and goes on, so that state "
            "is lost silently.",
            code="workdir.file-manager",
            about=workdir.address,
            unchanged="everything",
            next_step=f"leave {SETTING} unset: a quick and safe manager is chosen for workdirs on object storage",
        )


def quick_settings(workdir: Workdir, spark: SparkSession, *, may_differ: bool) -> dict[str, str]:
    """The settings under which a query is started: none where the user has chosen, or Spark chooses well.

    `may_differ` says whether the query computes another state when a task is tried again.
    """
    if not is_cloud(workdir.address) or spark.conf.get(SETTING, None) or may_differ:
        return {}
    known = [name for name in (f"{package}.{_QUICK}" for package in _PACKAGES) if can_load(spark, name)]
    return {SETTING: known[0]} if known else {}
