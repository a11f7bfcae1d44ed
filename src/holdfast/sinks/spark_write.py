"""Writes a frame with Spark, and finds out whether the rows or the storage caused a failure."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.base.addresses import HDFS_SCHEME, is_cloud, is_local, remote_parts, scheme_of, spark_address
from holdfast.base.jvm import is_one_process, observed
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid, Unavailable, one_line
from holdfast.sinks.sink import RowsRefused
from holdfast.storage.objects.hdfs_errors import explained_text
from holdfast.storage.objects.refusals import refusal_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Classes of SQLSTATE that mean that the values or the columns are at fault.
DATA_STATES = ("0A", "21", "22", "23", "38", "42", "P0")
DISK_TROUBLE = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error")
# "does not exist" also occurs if another driver of the pipeline has swept the directory that `prepare` writes to.
DISK_TROUBLE_HERE = (
    "Permission denied",
    "Mkdirs failed",
    "not a directory",
    "Not a directory",
    "No such file",
    "does not exist",
)
NO_CONNECTOR = ("FileSystem not found", "No FileSystem for scheme")
CLOUD_DENIED = ("AccessDenied", "Status Code: 403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403 Forbidden")
CLOUD_TROUBLE = (
    "UnknownStoreException",
    "NoSuchBucket",
    "Unable to execute HTTP request",
    "AWSClientIOException",
    "AWSServiceIOException",
    "AWSStatus500Exception",
    "AWSServiceThrottled",
    "SdkClientException",
    "SocketTimeout",
    "UnknownHostException",
    "ConnectException",
    "Status Code: 5",
    "AbfsRestOperationException",
    "GoogleJsonResponseException",
)
COMMITTER = {
    # By version 2, which many set for S3, a task that Spark has given up could still replace a file that was written.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Settings of Hadoop's output committer, for a write to object storage or HDFS."""
SHARED_PLACES = "s3a://, abfss://, gs://, hdfs://, or a disk that they see under one path"
"""Where the processes of a cluster see the same files."""
COUNTED_WITHIN = 10.0
"""Seconds to wait for what Spark has observed in a write that has ended."""
_PART_COLUMN = "__holdfast_part__"
_PART = re.compile(r"part-(\d+)-")


def write_rows(
    frame: DataFrame,
    path: str,
    format: str,
    *,
    options: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> None:
    """Write a frame to a local directory that exists, or to an address on object storage or HDFS, as one Spark job.
    Nothing is synced.

    `RowsRefused` if the rows or their columns are at fault, `Unavailable` if the disk or the service is, `Invalid` if
    Spark lacks the connector for the service, or if executors wrote to other disks than the driver's. Any other failure
    of Spark (cancelled, an executor lost, the source unreadable) is raised as it is.
    """
    with step("sink.write", format=format):
        written = None
        if is_local(path) and not is_one_process(frame.sparkSession):
            written = WrittenParts()
            frame = written.observe(frame)
        committer = {} if is_local(path) else COMMITTER
        writer = frame.write.format(format).mode("append").options(**(committer | dict(options or {})))
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        try:
            writer.save(spark_address(path))
        except Exception as error:
            explained = explain(error, path)
            if explained is None:
                raise
            raise explained from error
        if written is not None:
            written.check(path)


class WrittenParts:
    """Which partitions of a frame had rows to write. Each writes a file of its own, named by its number.

    Spark takes for written what the driver lists: what an executor wrote to a disk of its own is lost without an error.
    """

    def observe(self, frame: DataFrame) -> DataFrame:
        """The same frame, observed by the first action on it."""
        from pyspark.sql import Observation, functions

        self._observation = Observation()
        # In a column, because Spark does not initialise expressions such as this one in what it observes.
        marked = frame.withColumn(_PART_COLUMN, functions.spark_partition_id())
        return marked.observe(self._observation, functions.collect_set(_PART_COLUMN).alias("parts")).drop(_PART_COLUMN)

    def check(self, path: str) -> None:
        """`Invalid` if the driver does not see a file of each of them at the path.

        Does not guarantee that where Spark drops what it has observed, or has been told to name files otherwise.
        """
        names = [name for _, _, files in os.walk(path) for name in files if not name.startswith(("_", "."))]
        numbered = [_PART.match(name) for name in names]
        seen = {int(found[1]) for found in numbered if found}
        lost = sorted(set(self._parts()) - seen) if all(numbered) else []
        if lost:
            raise Invalid(
                f"Executors have written files to {path} that the driver does not see, {len(lost)} of "
                f"{len(lost) + len(seen)}: they have other disks.",
                code="sink.not-shared",
                about=path,
                unchanged="everything that readers see",
                next_step=f"give the sink a place that the driver and all executors reach ({SHARED_PLACES}), or run on "
                "one machine: master local[*]",
            )

    def _parts(self) -> list[int]:
        deadline = time.monotonic() + COUNTED_WITHIN
        while (found := observed(self._observation)) is None and time.monotonic() < deadline:
            time.sleep(0.005)  # Spark tells in a thread of its own
        return (found or {}).get("parts") or []


def explain(error: BaseException, path: str) -> HoldfastError | None:
    """The `HoldfastError` for a failed write; None if neither the rows nor this disk caused it."""
    cause: BaseException | None = error
    seen = 0
    while cause is not None and seen < 20:
        state = _sql_state(cause)
        if state is not None and state.startswith(DATA_STATES):
            return RowsRefused(
                f"Spark could not write these rows: {one_line(cause)}",
                about=path,
                unchanged="everything that readers see",
                next_step="correct the query, or filter such rows out, and start again",
            )
        cause, seen = getattr(cause, "_cause", None) or cause.__cause__, seen + 1
    text = str(error)
    if is_cloud(path):
        return _explain_cloud(text, one_line(error), path)
    if scheme_of(path) == HDFS_SCHEME:
        shown = f"Spark could not write to HDFS: {one_line(error)}"
        return explained_text(shown, text, path) if _is_of(path, text) else None
    if any(words in text for words in DISK_TROUBLE) or (path in text and any(w in text for w in DISK_TROUBLE_HERE)):
        return Unavailable(
            f"Spark could not write to the directory: {one_line(error)}",
            code="sink.disk",
            about=path,
            unchanged="everything that readers see",
            next_step="make room, or allow the executors' user to write there, and try again",
        )
    return None


def _is_of(path: str, text: str) -> bool:
    """Whether an error's text is about this place, not about another such as the source."""
    return remote_parts(path).host in text or path.rpartition("/")[2] in text


def _explain_cloud(text: str, shown: str, path: str) -> HoldfastError | None:
    if any(words in text for words in NO_CONNECTOR):
        return Invalid(
            f"Spark has no connector for {scheme_of(path)}://: {shown}",
            code="sink.connector",
            about=path,
            unchanged="everything that readers see",
            next_step="add the connector to spark.jars.packages, for S3 org.apache.hadoop:hadoop-aws of Spark's Hadoop",
        )
    if not _is_of(path, text):
        return None
    if refusal := refusal_in(text):
        return Unavailable(
            f"Spark could not write to object storage: {shown}",
            code=refusal.code,
            about=path,
            unchanged="everything that readers see",
            next_step=refusal.next_step,
        )
    is_denied = any(words in text for words in CLOUD_DENIED)
    if is_denied or any(words in text for words in CLOUD_TROUBLE):
        return Unavailable(
            f"Spark could not write to object storage: {shown}",
            code="cloud.denied" if is_denied else "cloud.unavailable",
            about=path,
            unchanged="everything that readers see",
            next_step="check the credentials and the bucket's policy; Spark has its own settings, such as "
            "spark.hadoop.fs.s3a.access.key"
            if is_denied
            else "try again when the service answers",
        )
    return None


def column_named(name: str) -> Column:
    """The column of exactly this name, which may hold dots and backticks."""
    from pyspark.sql import functions

    return functions.col(f"`{name.replace('`', '``')}`")


def first_reason(conditions: Iterable[tuple[Column, str]]) -> Column | None:
    """The words of the first condition that a row meets, null if it meets none. None without conditions."""
    from pyspark.sql import functions

    reasons = [functions.when(condition, functions.lit(words)) for condition, words in conditions]
    return functions.coalesce(*reasons) if reasons else None


def _sql_state(error: BaseException) -> str | None:
    asking = getattr(error, "getSqlState", None)
    state = asking() if callable(asking) else None
    return state if isinstance(state, str) else None
