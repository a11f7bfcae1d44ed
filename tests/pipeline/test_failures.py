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
    unavailable("disk.read-only"),
    unavailable("disk.not-a-directory"),
    unavailable("hdfs.credentials"),
    unavailable("hdfs.denied"),
    unavailable("hdfs.not-a-directory"),
    unavailable("workdir.disk", PermissionError(errno.EACCES, "Permission denied")),
    unavailable("sink.disk", OSError(errno.EROFS, "Read-only file system")),
    unavailable("sink.disk", RuntimeError(f"{JAVA}java.io.IOException: Mkdirs failed to create file:/out/_staged")),
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


def test_an_error_that_says_all_is_raised_as_it_is() -> None:
    assert explained(unavailable("cloud.denied")) is None
    assert explained(AnalysisException("[UNRESOLVED_COLUMN] x")) is None
