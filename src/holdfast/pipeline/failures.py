"""Failures that starting again cannot help: denied, missing, or at odds with the query. Pure."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable, one_line

_CODES = {
    "bucket.not-found",
    "cloud.credentials",
    "cloud.denied",
    "disk.denied",
    "disk.no-links",
    "disk.not-a-directory",
    "disk.read-only",
    "hdfs.credentials",
    "hdfs.denied",
    "hdfs.not-a-directory",
}
"""Of Holdfast's own errors, those whose kind alone (`Unavailable`) would say that trying again may help."""

_NUMBERS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
"""Of the system's errors behind one of Holdfast's."""

_ANALYSIS = re.compile(r"\bAnalysisException\b")


class _Words(msgspec.Struct, frozen=True):
    """Words in an error of Spark's, and the error of ours for it."""

    pattern: re.Pattern[str]
    kind: type[HoldfastError]
    code: str
    message: str
    next_step: str


_WORDS = (
    _Words(
        re.compile(
            r"STATE_STORE_\w*NOT_COMPATIBLE|STATE_STORE_INVALID_(?:CONFIG_AFTER_RESTART|PROVIDER)"
            r"|STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA|StateSchemaNotCompatible"
        ),
        Invalid,
        code="state.not-compatible",
        message="The state in the checkpoint does not fit this query",
        next_step="run the query as it was, or begin again with on_change='reset'",
    ),
    _Words(
        re.compile(r"(?:ModuleNotFoundError|ImportError): No module named"),
        Invalid,
        code="executor.package",
        message="A Python package is missing where the query runs",
        next_step="install it in the Python of the executors (PYSPARK_PYTHON), or ship it with spark.submit.pyFiles",
    ),
    _Words(
        re.compile(r"\bNoSuchBucket\b|UnknownStoreException|bucket does not exist", re.IGNORECASE),
        NotFound,
        code="spark.no-bucket",
        message="Spark does not find a bucket",
        next_step="check the address, or create the bucket",
    ),
    _Words(
        re.compile(
            r"AccessDenied|AccessControlException|Permission denied|Mkdirs failed to create|Read-only file system"
            r"|\b403 Forbidden|[Ss]tatus [Cc]ode:? 403|InvalidAccessKeyId|SignatureDoesNotMatch|NoAuthWithAWS"
            r"|Unable to load (?:AWS )?credentials"
        ),
        Unavailable,
        code="spark.denied",
        message="Spark is not allowed to read or write",
        next_step="check the credentials, or who may write to that directory",
    ),
)


def is_permanent(error: BaseException) -> bool:
    """Whether starting again would fail in the same way, so that the failure is raised at once."""
    return any(_is_permanent(found) for found in _causes(error))


def explained(error: BaseException) -> HoldfastError | None:
    """Holdfast's error for a permanent failure of Spark's; None if it needs none or is Holdfast's already."""
    if isinstance(error, HoldfastError):
        return None
    for found in _causes(error):
        for words in _WORDS:
            if line := _line_with(words.pattern, str(found)):
                return words.kind(
                    f"{words.message}: {one_line(line)}",
                    code=words.code,
                    unchanged="every checkpoint, and every sink up to the last epoch that was decided",
                    next_step=words.next_step,
                )
    return None


def _is_permanent(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NUMBERS
    if isinstance(error, HoldfastError):
        return error.code in _CODES
    text = str(error)
    if type(error).__name__ == "AnalysisException" or _ANALYSIS.search(text):
        return True
    return any(words.pattern.search(text) for words in _WORDS)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__


def _line_with(pattern: re.Pattern[str], text: str) -> str | None:
    return next((line.strip() for line in text.splitlines() if pattern.search(line)), None)
