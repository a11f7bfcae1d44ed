"""One Spark session per test process, small and quiet."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maven import jars
from servers.s3 import hadoop_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Djdk.lang.Process.launchMechanism=VFORK"
)
"""Half the time for a JVM that lives for seconds. With less room for code, it would be compiled again and again. Hadoop
starts a `chmod` for each file on a disk, and Java a helper before it: a seventh of the CPU time of a test run, half of
it for the helper, which this way of starting does without."""

FILE_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing"

ATTEMPTS = 3
"""How often the session of a test process tries a task."""

CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""What a JVM with Spark loads, ready to be mapped: a third of its start. `make test` puts it there."""


def java_options() -> str:
    """For a JVM that runs Spark. Classes that it cannot use it passes over, without a word."""
    usual = f"{QUICK_START} -Djava.io.tmpdir={tempfile.gettempdir()}"
    return f"{usual} -XX:SharedArchiveFile={CLASSES} -Xlog:disable" if CLASSES.exists() else usual


def make_session(place: Path, *, master: str = f"local[2,{ATTEMPTS}]", **settings: str) -> SparkSession:
    """A session that keeps what it writes under `place` and talks to nobody but itself."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("holdfast-tests")
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": java_options(),
        # Spark's other way to write its logs, which starts no process for each file; works.py has the usual one.
        "spark.sql.streaming.checkpointFileManagerClass": f"{FILE_MANAGERS}.FileSystemBasedCheckpointFileManager",
        # For rows by the dozen, compiling costs more than it saves: half the CPU time of a test session.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.jars": ",".join(str(jar) for jar in jars("s3a")),
    }
    for name, value in (defaults | settings).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def reach_bucket(spark: Any, bucket: str, endpoint: str, **replaced: str) -> None:
    """Let Spark reach a bucket at an endpoint, such as a proxy, by settings for this bucket alone.

    `replaced` are settings of the connector, with `_` for dots: `access_key="..."`.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    wanted = {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in hadoop_settings(endpoint).items()}
    for name, value in (wanted | {name.replace("_", "."): value for name, value in replaced.items()}).items():
        hadoop.set(f"fs.s3a.bucket.{bucket}.{name}", value)


@contextmanager
def configured(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings, and as it was afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
