"""Sending one conditional write until there is an answer, without losing track of what may have happened.

A client library's own retries hide lost replies: the second try of a write that took effect looks like a rival's.
So conditional writes are retried here, where it is known which try may have arrived.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import Literal

TRIES = 5
FIRST_PAUSE = 0.1
NO_MORE_AFTER = 60.0

Failure = Literal["not-sent", "refused", "unknown"]
"""What an error says of the write: it never left, the service said no, or it may have taken effect."""

_STATUS = re.compile(r"inner: Status \{\s*status: (\d{3})\b")
_NEVER_CONNECTED = re.compile(r"legacy::Error\(\s*Connect,")  # a connection that was reset had been made before


class Unanswered(Exception):
    """Every try failed. `may_have_arrived` says whether any of them could have taken effect all the same."""

    def __init__(self, last: Exception, *, may_have_arrived: bool) -> None:
        super().__init__(str(last))
        self.last = last
        self.may_have_arrived = may_have_arrived


def failure_of(error: Exception) -> Failure:
    """Read obstore's error text, the only place where it says how far a request got."""
    text = str(error)
    if _NEVER_CONNECTED.search(text):
        return "not-sent"
    status = _STATUS.search(text)
    return "refused" if status and int(status[1]) < 500 else "unknown"


def is_passing_conflict(error: Exception) -> bool:
    """S3 answers 409 while another conditional write of the same key is under way: neither has won yet."""
    status = _STATUS.search(str(error))
    return status is not None and status[1] == "409"


def send(
    write: Callable[[], str | None],
    answers: tuple[type[Exception], ...],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """The result of `write`, tried until there is an answer or the tries are used up.

    `answers` are errors that answer the question the condition asked. One is raised as it is, unless a try before it
    may have arrived, for then it may speak of our own write: then, and without any answer, `Unanswered` is raised.
    """
    began = clock()
    may_have_arrived = False
    for number in range(TRIES):
        try:
            return write()
        except Exception as error:
            passing = is_passing_conflict(error)
            is_answer = isinstance(error, answers) and not passing
            if is_answer and not may_have_arrived:
                raise
            failure = failure_of(error)
            may_have_arrived |= failure == "unknown"
            is_final = is_answer or (failure == "refused" and not passing)
            if is_final or number == TRIES - 1 or clock() - began > NO_MORE_AFTER:
                raise Unanswered(error, may_have_arrived=may_have_arrived) from error
        pause(FIRST_PAUSE * 2**number * random.uniform(0.75, 1.25))
    raise AssertionError("the last try either returns or raises")
