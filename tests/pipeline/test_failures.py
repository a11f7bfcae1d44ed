"""Which failures starting again cannot help, and what is said of them."""

from __future__ import annotations

import errno

import pytest

from holdfast.errors import Conflict, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.pipeline.failures import explained, is_permanent
from holdfast.pipeline.supervisor import is_passing


class AnalysisException(Exception):
    """Named as PySpark's."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def unavailable(code: str, cause: Exception | None = None) -> Exception:
    error = Unavailable("It cannot be reached.", code=code)
    return caused(error, cause) if cause else error


JAVA = "An error occurred while calling o1.start.\n: "
PERMANENT = [
    unavailable("cloud.credentials"),
    unavailable("cloud.denied"),
    unavailable("disk.denied"),
    unavailable("hdfs.denied"),
    unavailable("disk.read-only"),
    unavailable("disk.not-a-directory"),
    unavailable("hdfs.credentials"),
    unavailable("hdfs.denied"),
    unavailable("hdfs.not-a-directory"),
    unavailable("workdir.disk", PermissionError(errno.EACCES, "Permission denied")),
    unavailable("sink.disk", OSError(errno.EROFS, "Read-only file system")),
    unavailable("sink.disk", RuntimeError(f"{JAVA}java.io.IOException: Mkdirs failed to create file:/out/_staged")),
    unavailable("cloud.expired"),
    unavailable("cloud.clock"),
    unavailable("cloud.region"),
    NotFound("There is no bucket.", code="bucket.not-found"),
    AnalysisException("[UNRESOLVED_COLUMN] A column cannot be resolved"),
    RuntimeError(
        f"{JAVA}org.apache.spark.sql.catalyst.ExtendedAnalysisException: x\norg.apache.spark.sql.AnalysisException"
    ),
    RuntimeError("[STREAM_FAILED] [STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match"),
    RuntimeError("[CANNOT_LOAD_STATE_STORE] x\nCaused by: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] y"),
    RuntimeError("Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'geohash'"),
    RuntimeError(f"{JAVA}java.nio.file.AccessDeniedException: s3a://bucket/x: getFileStatus: 403 Forbidden"),
    RuntimeError(f"{JAVA}org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://bucket/': Bucket does not exist"),
]
PASSING = [
    unavailable("cloud.unavailable"),
    unavailable("disk.full"),
    unavailable("hdfs.safe-mode"),
    unavailable("hdfs.standby"),
    unavailable("sink.disk", OSError(errno.ENOSPC, "No space left on device")),
    unavailable("index.unavailable", ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")),
    Conflict("Another driver was first."),
    RuntimeError("ExecutorLostFailure (executor 1 exited)"),
]


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: f"{type(error).__name__} {error}"[:80])
def test_a_failure_that_stays_is_permanent_also_as_a_cause(error: Exception) -> None:
    assert is_permanent(error)
    assert is_permanent(caused(RuntimeError("a batch failed"), error))


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_a_failure_that_may_pass_is_not_permanent(error: Exception) -> None:
    assert not is_permanent(error)
    assert is_passing(error)
    assert explained(error) is None


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("x\n[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] It differs\ny", Invalid, "state.not-compatible"),
        ("Traceback\nModuleNotFoundError: No module named 'geohash'", Invalid, "executor.package"),
        ("x: java.nio.file.AccessDeniedException: s3a://bucket/x", Unavailable, "spark.denied"),
        ("Bucket does not exist", NotFound, "spark.no-bucket"),
        ("x: AWSBadRequestException: open s3a://bucket/x: ExpiredToken (Service: S3)", Unavailable, "cloud.expired"),
        ("x: AccessDeniedException: s3a://bucket/x: RequestTimeTooSkewed: 403", Unavailable, "cloud.clock"),
        ("x: AWSBadRequestException: getFileStatus on s3a://bucket/x: Bad Request", Unavailable, "spark.bad-request"),
        ("x: AWSRedirectException: s3a://bucket/x: 301", Unavailable, "cloud.region"),
    ],
)
def test_what_is_said_of_an_error_of_sparks(text: str, kind: type[HoldfastError], code: str) -> None:
    told = explained(RuntimeError(text))
    assert type(told) is kind
    assert told is not None
    assert told.code == code
    assert told.unchanged
    assert told.next_step
    assert "\n" not in told.message
    wanted = {"state.not-compatible": "It differs", "executor.package": "'geohash'"}.get(code, "")
    assert wanted in told.message


STORAGE = [
    (
        "CANNOT_COMMIT: Error writing state store files\nCaused by: org.apache.hadoop.ipc.RemoteException(java.io."
        "IOException): File /w/.3.delta could only be written to 0 of the 1 minReplication nodes.",
        "hdfs.full",
    ),
    (f"{JAVA}org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create /w.", "hdfs.safe-mode"),
    (
        "Call From vm/127.0.0.1 to localhost:1 failed on connection exception: java.net.ConnectException: Connection "
        "refused; For more details see:  http://wiki.apache.org/hadoop/ConnectionRefused",
        "hdfs.unreachable",
    ),
    (
        "getFileStatus on s3a://bucket/w/offsets/2: software.amazon.awssdk.core.exception.SdkClientException: Unable "
        "to execute HTTP request: The target server failed to respond (SDK Attempt Count: 6)\n=== Streaming Query ===",
        "spark.unavailable",
    ),
]


@pytest.mark.parametrize(("text", "code"), STORAGE, ids=[code for _, code in STORAGE])
def test_storage_that_does_not_serve_spark_is_tried_again(text: str, code: str) -> None:
    error = RuntimeError(text)
    told = explained(error)
    assert isinstance(told, Unavailable)
    assert told.code == code
    assert told.unchanged
    assert told.next_step
    told.__cause__ = error
    assert is_passing(told)
    assert not is_permanent(told)


def test_an_error_that_says_all_is_raised_as_it_is() -> None:
    assert explained(unavailable("cloud.denied")) is None
    assert explained(AnalysisException("[UNRESOLVED_COLUMN] x")) is None
