"""Everything that Holdfast asks of Spark's JVM.

No other module uses a session's gateway. Only `pipeline/query/plan_reader.py` calls methods of Java objects: of the
plans that `analysed_plan` and `optimised_plan` return.

A Spark Connect session has no JVM and no SparkContext in its process. Each function here says what Spark Connect offers
instead, so that support for it can be added here.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
R = TypeVar("R")
_SCHEDULER = "org.apache.spark.scheduler.DAGScheduler"
_changing_settings = threading.RLock()


def is_in_driver(frame: DataFrame) -> bool:
    """Whether the frame's session runs in this process, with its JVM. False for a Spark Connect session."""
    return hasattr(frame, "_jdf")


def analysed_plan(frame: DataFrame) -> Any:
    """The analysed logical plan of a frame, a Java object: its leaves are the sources in the order of Spark's log.

    Spark Connect: `DataFrame.explain(extended=True)` prints the plan and gives no objects; the sources would have to
    be read from the text, or from the unresolved plan that the client itself holds.
    """
    return frame._jdf.queryExecution().analyzed()


def optimised_plan(frame: DataFrame) -> Any:
    """The plan of a streaming frame after Spark's optimiser, a Java object, as every batch of it is planned.

    Spark itself does that only for a query that has been started. Runs no job of its own.
    Spark Connect: `DataFrame.explain(extended=True)` prints it for streams as well.
    """
    optimiser = frame.sparkSession._jsparkSession.sessionState().optimizer()
    return optimiser.execute(analysed_plan(frame).clone())


def session_settings(spark: SparkSession, names: Sequence[str]) -> dict[str, str]:
    """The session's values of these settings, Spark's defaults included; without those that this Spark does not know.

    Spark Connect: the same.
    """
    found = {}
    for name in names:
        with contextlib.suppress(Exception):  # an error of the JVM's for a name that it does not know
            found[name] = str(spark.conf.get(name))
    return found


@contextlib.contextmanager
def changed_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings within a block. One block at a time in this process.

    Spark Connect: the same.
    """
    with _changing_settings:
        before: dict[str, str | None] = {name: session.conf.get(name, None) for name in wanted}
        try:
            for name, value in wanted.items():
                session.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, old)


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


def executor_count(spark: SparkSession) -> int:
    """How many executors have registered, the driver not counted.

    Spark Connect: nothing; the tasks of a job tell where they ran.
    """
    context: Any = spark.sparkContext
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def run_on_executors(spark: SparkSession, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function on the executors, one task per item, and return the results in the order of the items.

    Spark Connect: `spark.createDataFrame(items).mapInArrow(...)` with pickled bytes in both directions.
    """
    return spark.sparkContext.parallelize(list(items), len(items)).map(function).collect()


def running_spark() -> object | None:
    """What all sessions of the Spark that runs in this process share, and none of another one; None if none runs.

    Asks Python only. Spark Connect: the client's channel to the server.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def open_connector(spark: SparkSession, address: str) -> None:
    """Have Hadoop open the file system of an address: a Java error if it has no connector, or one without settings.

    Spark Connect: nothing; the first write tells.
    """
    _file_system(spark, address)


def hadoop_setting(spark: SparkSession) -> Callable[[str], str | None]:
    """Returns settings of Hadoop's as this session has them now, also from a credential store; None if not set.

    Spark Connect: `spark.conf.get(f"spark.hadoop.{name}")`; credential stores are read on the server only.
    """
    settings = _hadoop_settings(spark)  # a copy of several hundred settings: made once

    def setting(name: str) -> str | None:
        found = settings.getPassword(name)
        return "".join(found) if found is not None else None

    return setting


def connector_credentials(spark: SparkSession, address: str) -> dict[str, str]:
    """The keys that Spark's connector for S3 uses at an `s3a://` address now; it renews them in time.

    Spark Connect: nothing. The keys have to be given as options.
    """
    found = _file_system(spark, address).getS3AInternals().shareCredentials("holdfast").resolveCredentials()
    keys = {"access_key_id": found.accessKeyId(), "secret_access_key": found.secretAccessKey()}
    if "Session" in found.getClass().getName():
        keys["token"] = found.sessionToken()
    return keys


def _file_system(spark: SparkSession, address: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(address).getFileSystem(_hadoop_settings(spark))


def _hadoop_settings(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().newHadoopConf()


def spark_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """A thread whose Spark jobs belong to what this one runs: the query, its description, its group.

    Spark Connect: a plain thread; jobs are tagged with `spark.addTag`.
    """
    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target=target, name=name, daemon=True)
    return thread


def observed(observation: Observation) -> dict[str, Any] | None:
    """What an observation has found; None before the first action on its frame has ended, where `get` would wait.

    Spark Connect: `observation.get` in a thread of its own.
    """
    metrics: Any = observation._jo
    if metrics is None or not metrics.future().isCompleted():
        return None
    return dict(observation.get)


def stop_query(spark: SparkSession, query: StreamingQuery) -> None:
    """`query.stop()` without Spark's warning that it found no job of the query to cancel.

    Spark Connect: `query.stop()`; its warnings are in the server's log.
    """
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    before = None
    with contextlib.suppress(Exception):  # another logging library: then the warning is shown
        before = log4j.LogManager.getLogger(_SCHEDULER).getLevel()
        log4j.core.config.Configurator.setLevel(_SCHEDULER, log4j.Level.ERROR)
    try:
        query.stop()
    finally:
        if before is not None:
            log4j.core.config.Configurator.setLevel(_SCHEDULER, before)


def active_session() -> SparkSession | None:
    """This thread's session, or else this process's; None if no Spark runs in it. Does not import Spark to find out.

    Spark Connect: the same; the session that it returns has no JVM.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException:
        return None


def kill_starting_jvm(trace: TracebackType | None) -> None:
    """Kill the JVM of a session whose start was interrupted, with this traceback; nothing if it has started.

    It would find nobody to answer to, and print where it noticed that.
    Spark Connect: nothing to do; the server goes on.
    """
    while trace is not None:  # until PySpark has reached its JVM, only its function that waits for it knows the process
        frame, trace = trace.tb_frame, trace.tb_next
        unborn = frame.f_locals.get("proc") if frame.f_code.co_name == "launch_gateway" else None
        if isinstance(unborn, subprocess.Popen):
            unborn.kill()
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    context: Any = SparkContext
    process = getattr(context._gateway, "proc", None)
    if context._active_spark_context is None and process is not None:
        process.kill()


def remove_tree(spark: SparkSession, address: str) -> None:
    """Remove everything at an address through Spark's own connector, also what it leaves there for folders.

    Spark Connect: nothing; our own client removes the files and leaves empty objects for folders.
    """
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(address)
    path.getFileSystem(_hadoop_settings(spark)).delete(path, True)


def can_load(spark: SparkSession, name: str) -> bool:
    """Whether this Spark has a class of that name.

    Spark Connect: nothing; compare `spark.version`.
    """
    try:
        jvm: Any = spark._jvm
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception:  # Java's ClassNotFoundException, wrapped
        return False
    return True


def active_settings() -> dict[str, str]:
    """The settings that this process's Spark was started with; empty if none was started.

    Spark Connect: `spark.conf.getAll` of the session.
    """
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    return dict(context.getConf().getAll()) if context is not None else {}
