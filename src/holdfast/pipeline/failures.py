"""Failures of Spark in words, and those that starting again cannot help: denied, missing, at odds with the query."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable, one_line
from holdfast.storage.objects.hdfs_errors import explained_text
from holdfast.storage.objects.refusals import refusal_in

_CODES = {
    "bucket.not-found",
    "cloud.clock",
    "cloud.credentials",
    "cloud.denied",
    "cloud.expired",
    "cloud.region",
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

_UNCHANGED = "every checkpoint, and every sink up to the last epoch that was decided"
_CLOUD_TROUBLE = re.compile(
    r"Unable to execute HTTP request|HttpChannelEOFException|AWSClientIOException|AWSServiceIOException"
    r"|AWSStatus500Exception|AWSServiceThrottledException"
)
_HDFS_TROUBLE = re.compile(
    r"could only be (?:written|replicated) to|SafeModeException|in safe mode|StandbyException|QuotaExceeded"
    r"|wiki\.apache\.org/hadoop/"
)
"""What Hadoop's clients say of storage that does not do its part for now: of the workdir, a sink, or the source."""

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
        re.compile(r"AWSBadRequestException"),
        Unavailable,
        code="spark.bad-request",
        message="Object storage does not take Spark's requests, and does not say why",
        next_step="check whether the credentials have expired, and whether the bucket is in the region that is set",
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
    """Holdfast's error for a permanent failure of Spark's, or for one of its storage; None if it needs none or is
    Holdfast's already."""
    if isinstance(error, HoldfastError):
        return None
    return _permanent(error) or _of_storage(error)


def _permanent(error: BaseException) -> HoldfastError | None:
    for found in _causes(error):
        text = str(found)
        if refusal := refusal_in(text):
            return Unavailable(
                f"Object storage refuses Spark's requests: {one_line(_line_with(refusal.words, text) or text)}",
                code=refusal.code,
                unchanged=_UNCHANGED,
                next_step=refusal.next_step,
            )
        for words in _WORDS:
            if line := _line_with(words.pattern, text):
                return words.kind(
                    f"{words.message}: {one_line(line)}",
                    code=words.code,
                    unchanged=_UNCHANGED,
                    next_step=words.next_step,
                )
    return None


def _of_storage(error: BaseException) -> HoldfastError | None:
    for found in _causes(error):
        if line := _line_with(_HDFS_TROUBLE, str(found)):
            return explained_text(f"Spark is not served by HDFS: {one_line(line)}", line, unchanged=_UNCHANGED)
        if line := _line_with(_CLOUD_TROUBLE, str(found)):
            return Unavailable(
                f"Spark does not reach object storage: {one_line(line)}",
                code="spark.unavailable",
                unchanged=_UNCHANGED,
                next_step="start again when the service answers",
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
    return refusal_in(text) is not None or any(words.pattern.search(text) for words in _WORDS)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__


def _line_with(pattern: re.Pattern[str], text: str) -> str | None:
    return next((line.strip() for line in text.splitlines() if pattern.search(line)), None)
