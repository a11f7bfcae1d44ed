"""Retries of one conditional write, which keep track of whether an earlier try may have taken effect.

A client library's own retries hide lost replies: if the first try took effect, the second fails as if a rival had
written. So conditional writes are retried here, where it is known which try may have arrived.
"""

from __future__ import annotations

import functools
import logging
import random
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Literal, TypeVar

log = logging.getLogger("holdfast.objects")
T = TypeVar("T")
READS_ERRORS_OF = {"obstore": "0.12", "hdfs-native": "0.14", "deltalake": "1.6"}
"""The releases whose error texts were read to write what tells their errors apart: `failure_of`, `hdfs_errors`, and
`cloud_errors` of the Delta sink. They are no interface and may change."""

TRIES = 5
FIRST_PAUSE = 0.1
SHOWN_FROM = 4.0
"""Seconds of a pause from which on it is worth a warning."""
NO_MORE_AFTER = 60.0
SLOWER = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)
"""The pauses after each time that a service asks for fewer requests: a minute in all."""

Failure = Literal["not-sent", "refused", "unknown"]
"""How a write failed: it was never sent, the service refused it, or it may have taken effect."""

_STATUS = re.compile(r"inner: Status \{\s*status: (\d{3})\b")
_NEVER_CONNECTED = re.compile(r"legacy::Error\(\s*Connect,")  # a connection that was reset had been made before
_REDIRECTED = "redirect without LOCATION"  # a bucket of another region: the service has done nothing
_TAKEN_ON_AZURE = "<Code>BlobAlreadyExists</Code>"
_SLOW_DOWN = re.compile(r"<Code>(?:SlowDown|ServerBusy|TooManyRequests|RequestLimitExceeded|Throttling\w*)</Code>")
_METADATA = re.compile(
    r"https?://[^/\s]+/(?:latest/api/token|latest/meta-data|computeMetadata/v1/|metadata/identity/oauth2/token)"
)
"""The service of a machine in a cloud that gives out the credentials of its role: of AWS, Google Cloud and Azure."""


class Unanswered(Exception):
    """Every try failed. `may_have_arrived` says whether any of them could have taken effect all the same."""

    def __init__(self, last: Exception, *, may_have_arrived: bool) -> None:
        super().__init__(str(last))
        self.last = last
        self.may_have_arrived = may_have_arrived


@functools.cache
def check_release(package: str) -> None:
    """Warn, once, if the errors of the installed release of a package may read differently from what is expected."""
    installed, read = version(package), READS_ERRORS_OF[package]
    if not f"{installed}.".startswith(f"{read}."):
        log.warning(
            "%s %s is installed; its errors are read as those of %s. A failure may be reported as another one, such as "
            "outcome unknown where it was refused, or be repeated more often than needed. Next: install %s==%s.*",
            package,
            installed,
            read,
            package,
            read,
        )


def failure_of(error: Exception) -> Failure:
    """Read obstore's error text, the only place where it says how far a request got. Strange text is "unknown"."""
    text = str(error)
    if _NEVER_CONNECTED.search(text) or _METADATA.search(text):
        return "not-sent"
    if _REDIRECTED in text:
        return "refused"
    status = _STATUS.search(text)
    return "refused" if status and int(status[1]) < 500 and status[1] != "408" else "unknown"


def is_passing(error: Exception) -> bool:
    """Whether the service refused for now only, without having written anything.

    S3 answers 409 while another conditional write of the same key is under way: neither has won yet. 429 is too many
    requests; Google Cloud Storage allows one write a second of the same object. Azure's 409 for a name that is taken is
    final.
    """
    text = str(error)
    status = _STATUS.search(text)
    return status is not None and status[1] in ("409", "429") and _TAKEN_ON_AZURE not in text


def is_throttled(error: Exception) -> bool:
    """Whether the service is there and asks for fewer requests: time helps, and nothing else does."""
    status = _STATUS.search(str(error))
    return (status is not None and status[1] == "429") or _SLOW_DOWN.search(str(error)) is not None


def has_no_reason(error: Exception) -> bool:
    """Whether the service refused a HEAD: its reply has no body, and so does not say why."""
    status = _STATUS.search(str(error))
    return "method: HEAD" in str(error) and status is not None and status[1] in ("400", "403", "503")


def is_lost(error: Exception) -> bool:
    """Whether a request got no answer, though it may have arrived."""
    return failure_of(error) == "unknown" and _STATUS.search(str(error)) is None


def patiently(ask: Callable[[], T], *, pause: Callable[[float], None] = time.sleep) -> T:
    """The result of `ask`, which can be repeated without harm; called again while the service is only busy."""
    for seconds in SLOWER:
        try:
            return ask()
        except Exception as error:
            if not is_throttled(error):
                raise
        _slow_down(seconds, pause)
    return ask()


def until_answered(ask: Callable[[], T], *, pause: Callable[[float], None] = time.sleep) -> T:
    """As `patiently`, and called again a few times if the reply is lost: for what obstore itself does not repeat."""
    for number in range(TRIES - 1):
        try:
            return patiently(ask, pause=pause)
        except Exception as error:
            if not is_lost(error):
                raise
        pause(FIRST_PAUSE * 2**number)
    return patiently(ask, pause=pause)


def _slow_down(seconds: float, pause: Callable[[float], None]) -> None:
    level = logging.WARNING if seconds >= SHOWN_FROM else logging.DEBUG
    log.log(level, "the object store asks for fewer requests; the next one is sent in %g s", seconds)
    pause(seconds * random.uniform(0.75, 1.25))


def lacks_credentials(error: Exception) -> bool:
    """Whether no credentials were given, and this machine has no role that would give some.

    obstore asks for a role where no credentials are set. A machine outside of a cloud cannot reach the service that it
    asks, and one without a role is refused. A service that is there and fails for now (5xx, 429) is no such sign.
    """
    text = str(error)
    status = _STATUS.search(text)
    is_passing = status is not None and (int(status[1]) >= 500 or status[1] in ("408", "429"))
    return _METADATA.search(text) is not None and not is_passing


def send(
    write: Callable[[], T],
    answers: tuple[type[Exception], ...],
    *,
    is_hopeless: Callable[[Exception], bool] = lambda _: False,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> T:
    """Call `write` until it succeeds or fails for good, a bounded number of times, and return its result.

    `answers` are the errors that say the condition did not hold. Such an error is raised as it is, unless an earlier
    try may have arrived: then the condition may have failed because of our own write, and `Unanswered` is raised. The
    same if every try failed without an answer. After an error that `is_hopeless` there is no further try. A service
    that asks for fewer requests is asked again for a minute.
    """
    began = clock()
    may_have_arrived = False
    number = 0
    slower = iter(SLOWER)
    while True:
        try:
            return write()
        except Exception as error:
            passing = is_passing(error)
            is_answer = isinstance(error, answers) and not passing
            if is_answer and not may_have_arrived:
                raise
            failure = failure_of(error)
            may_have_arrived |= failure == "unknown"
            is_final = is_answer or (failure == "refused" and not passing) or is_hopeless(error)
            longer = next(slower, None) if is_throttled(error) and not is_final else None
            if is_final or (longer is None and number == TRIES - 1) or clock() - began > NO_MORE_AFTER:
                raise Unanswered(error, may_have_arrived=may_have_arrived) from error
        if longer is not None:
            _slow_down(longer, pause)
        else:
            pause(FIRST_PAUSE * 2**number * random.uniform(0.75, 1.25))
            number += 1
