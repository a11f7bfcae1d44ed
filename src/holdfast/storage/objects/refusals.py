"""Why a cloud's service refused a request, by what its reply says. Pure.

The same words are in the errors of obstore, of `deltalake` and of Spark's connectors.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import one_line

_REPLY = re.compile(r"<Code>(?P<code>[^<]*)</Code>(?:\s*<Message>(?P<message>[^<]*)</Message>)?")
_DENIED = re.compile(r"\b403 Forbidden|\b401 Unauthorized|lacked the necessary privileges|\(code: AccessDenied\)")


class ServiceRefusal(msgspec.Struct, frozen=True):
    """A refusal that starting again cannot help."""

    words: re.Pattern[str]
    code: str
    next_step: str


_REFUSALS = (
    ServiceRefusal(
        re.compile(
            r"\bExpiredToken|\bTokenRefreshRequired\b|\bRequestExpired\b|\btoken (?:has|is) expired", re.IGNORECASE
        ),
        code="cloud.expired",
        next_step="get new credentials and start again; those of a role are renewed by themselves, if Spark is given "
        "the role (fs.s3a.aws.credentials.provider) instead of its keys",
    ),
    ServiceRefusal(
        re.compile(r"\bRequestTimeTooSkewed\b"),
        code="cloud.clock",
        next_step="set this machine's clock, which differs from the service's by more than a quarter of an hour",
    ),
    ServiceRefusal(
        re.compile(
            r"\bPermanentRedirect\b|\bAuthorizationHeaderMalformed\b|\bIllegalLocationConstraintException\b"
            r"|redirect without LOCATION|AWSRedirectException"
        ),
        code="cloud.region",
        next_step="give the region of the bucket: spark.hadoop.fs.s3a.endpoint.region, the option aws_region, or "
        "AWS_REGION",
    ),
)


def refusal_in(text: str) -> ServiceRefusal | None:
    """What an error's text says beyond a denial; None if it says nothing of the kind."""
    return next((refusal for refusal in _REFUSALS if refusal.words.search(text)), None)


def is_denied(text: str) -> bool:
    """Whether the service knows the request and does not allow it."""
    return _DENIED.search(text) is not None


def said_by_service(error: BaseException | str) -> str:
    """The service's own words, without its XML; the first line of an error that has none."""
    reply = _REPLY.search(str(error))
    return one_line(f"{reply['code']}: {reply['message'] or ''}".rstrip(": ") if reply else error).rstrip(".")
