"""Everything that Holdfast asks of Spark's JVM, and nothing else in the project does.

A Spark Connect session has no JVM and no SparkContext in its process. Each function here says what Spark Connect offers
instead, so that support for it can be added in this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")


def is_in_driver(frame: DataFrame) -> bool:
    """Whether the frame's session runs in this process, with its JVM. False for a Spark Connect session."""
    return hasattr(frame, "_jdf")


def analysed_plan(frame: DataFrame) -> Any:
    """The analysed logical plan of a frame, a Java object: its leaves are the sources in the order of Spark's log.

    Spark Connect: `DataFrame.explain(extended=True)` prints the plan and gives no objects; the sources would have to
    be read from the text, or from the unresolved plan that the client itself holds.
    """
    return frame._jdf.queryExecution().analyzed()


def identity_of(frame: DataFrame, java_object: Any) -> int:
    """A number that is the same for the same Java object as long as it lives.

    Spark Connect: nothing. Its client numbers every relation of a plan (`plan_id`), which serves the same purpose.
    """
    jvm: Any = frame.sparkSession._jvm
    return int(jvm.java.lang.System.identityHashCode(java_object))


def is_one_process(spark: SparkSession) -> bool:
    """Whether driver and executors are the same process: a lost executor is then a lost driver.

    Spark Connect: `spark.conf.get("spark.master")`.
    """
    return re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master or "") is not None


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks the cluster runs at once, as far as Spark knows.

    Spark Connect: `spark.conf.get("spark.default.parallelism")`, where it is set.
    """
    return max(1, int(spark.sparkContext.defaultParallelism))


def run_on_executors(spark: SparkSession, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function on the executors, one task per item; what it returned, in the order of the items.

    Spark Connect: `spark.createDataFrame(items).mapInArrow(...)` with pickled bytes in both directions.
    """
    return spark.sparkContext.parallelize(list(items), len(items)).map(function).collect()


def active_settings() -> dict[str, str]:
    """The settings that this process's Spark was started with; empty if none was started.

    Spark Connect: `spark.conf.getAll` of the session.
    """
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    return dict(context.getConf().getAll()) if context is not None else {}
