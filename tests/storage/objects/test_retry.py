"""Which tries of a conditional write may have arrived: a table, with no network and no waiting."""

from __future__ import annotations

import contextlib
import logging

import pytest

from holdfast.errors import Unavailable
from holdfast.sinks.delta.cloud_storage import CloudStorage
from holdfast.storage.objects import open_objects, retry
from holdfast.storage.objects.retry import (
    NO_MORE_AFTER,
    READS_ERRORS_OF,
    TRIES,
    Unanswered,
    check_release,
    failure_of,
    lacks_credentials,
    send,
)


class Taken(Exception):
    """Stands for 'exists already'."""


CONNECT = (
    "HTTP error\n\nHttpError { kind: Connect, source: hyper_util::client::legacy::Error(\n   Connect,\n  dns error"
)
DROPPED = "HTTP error\n\nHttpError { kind: Request, source: hyper_util::client::legacy::Error(\n   SendRequest,\n"
RESET = DROPPED + "Os { code: 104, kind: ConnectionReset }"
TIMEOUT = "HTTP error\n\nHttpError { kind: Timeout, source: reqwest::Error { kind: Request, source: TimedOut } }"
ROLES = {
    "aws": "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.0s",
    "google": "Generic GCS error: Error performing token request: Error performing GET "
    "http://169.254.169.254/computeMetadata/v1/instance/service-accounts/default/token?audience=x in 1.0s",
    "azure": "Generic MicrosoftAzure error: Error performing token request: Error performing GET "
    "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2019-08-01 in 1.0s",
}
NO_ROUTE = CONNECT.replace("kind: Connect", "kind: Timeout")


def status(code: int, kind: type[Exception] = RuntimeError) -> Exception:
    return kind(f"Generic S3 error\n\nDebug source: inner: Status {{\n    status: {code},\n}}")


def replies(*script: object) -> tuple[list[object], object]:
    left = list(script)

    def write() -> str:
        reply = left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return str(reply)

    return left, write


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(CONNECT), "not-sent"),
        (RuntimeError(NO_ROUTE), "not-sent"),
        (RuntimeError(DROPPED), "unknown"),
        (RuntimeError(RESET), "unknown"),
        (RuntimeError(TIMEOUT), "unknown"),
        (status(500), "unknown"),
        (status(503), "unknown"),
        (RuntimeError(str(status(503)) + "<p>status: 403</p>"), "unknown"),
        (status(408), "unknown"),
        (status(403), "refused"),
        (status(404), "refused"),
        (RuntimeError("nothing known about it"), "unknown"),
        (RuntimeError(ROLES["google"] + TIMEOUT), "not-sent"),
        (RuntimeError(ROLES["azure"] + str(status(503))), "not-sent"),
    ],
)
def test_how_far_a_request_got(error: Exception, expected: str) -> None:
    assert failure_of(error) == expected


@pytest.mark.parametrize("asked", ROLES.values(), ids=ROLES)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CONNECT, True),
        (TIMEOUT, True),
        (str(status(400)), True),
        (str(status(404)), True),
        (str(status(429)), False),
        (str(status(500)), False),
    ],
    ids=["no connection", "silence", "no identity", "no role", "too many requests", "a fault"],
)
def test_a_role_that_is_not_there_and_one_that_cannot_be_asked_now(asked: str, answer: str, expected: bool) -> None:
    assert lacks_credentials(RuntimeError(f"{asked} {answer}")) is expected


@pytest.mark.parametrize(
    "text",
    [
        CONNECT,
        str(status(403)),
        "Generic GCS error: Error performing token request: Error performing POST https://oauth2.googleapis.com/token",
        "Generic S3 error: Error performing PUT https://s3.amazonaws.com/bucket/latest/meta-data",
    ],
)
def test_other_failures_do_not_speak_of_credentials(text: str) -> None:
    assert not lacks_credentials(RuntimeError(text))


@pytest.mark.parametrize(
    "script",
    [
        ["tag"],
        [RuntimeError(CONNECT), "tag"],
        [status(503), RuntimeError(DROPPED), "tag"],
        [status(409, Taken), "tag"],
        [status(429), status(429), "tag"],
    ],
    ids=["at once", "after no connection", "after lost replies", "after a conflict that passed", "after a rate limit"],
)
def test_a_write_that_gets_through(script: list[object]) -> None:
    left, write = replies(*script)
    assert send(write, (Taken,), pause=lambda _: None) == "tag"
    assert left == []


def test_a_name_that_is_taken_on_azure_is_no_conflict_that_passes() -> None:
    """Azure answers 409 where S3 and Google answer 412, and S3 answers 409 while two writes of a key are under way."""
    left, write = replies(Taken(f"{status(409)} <Error><Code>BlobAlreadyExists</Code></Error>"), "tag")
    with pytest.raises(Taken):
        send(write, (Taken,), pause=lambda _: None)
    assert left == ["tag"]


def test_an_answer_is_raised_as_it_is() -> None:
    _, write = replies(Taken("412"))
    with pytest.raises(Taken):
        send(write, (Taken,), pause=lambda _: None)


def test_an_answer_after_no_connection_is_still_an_answer() -> None:
    _, write = replies(RuntimeError(CONNECT), Taken("412"))
    with pytest.raises(Taken):
        send(write, (Taken,), pause=lambda _: None)


def test_an_answer_after_a_lost_reply_may_speak_of_our_own_write() -> None:
    _, write = replies(RuntimeError(DROPPED), Taken("412"))
    with pytest.raises(Unanswered) as caught:
        send(write, (Taken,), pause=lambda _: None)
    assert caught.value.may_have_arrived
    assert isinstance(caught.value.last, Taken)


@pytest.mark.parametrize(("error", "arrived"), [(CONNECT, False), (DROPPED, True)])
def test_tries_are_bounded(error: str, arrived: bool) -> None:
    left, write = replies(*[RuntimeError(error)] * (TRIES + 3))
    pauses: list[float] = []
    with pytest.raises(Unanswered) as caught:
        send(write, (Taken,), pause=pauses.append)
    assert caught.value.may_have_arrived is arrived
    assert len(left) == 3
    assert len(pauses) == TRIES - 1
    assert pauses == sorted(pauses)


def test_a_refusal_is_not_tried_again() -> None:
    left, write = replies(status(403), "tag")
    with pytest.raises(Unanswered) as caught:
        send(write, (Taken,), pause=lambda _: None)
    assert not caught.value.may_have_arrived
    assert left == ["tag"]


def test_a_hopeless_failure_is_not_tried_again() -> None:
    left, write = replies(RuntimeError(ROLES["aws"] + CONNECT), "tag")
    with pytest.raises(Unanswered) as caught:
        send(write, (Taken,), is_hopeless=lacks_credentials, pause=lambda _: None)
    assert not caught.value.may_have_arrived
    assert left == ["tag"]


def test_slow_failures_are_not_repeated_for_ever() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += NO_MORE_AFTER
        return now[0]

    left, write = replies(RuntimeError(TIMEOUT), RuntimeError(TIMEOUT), "tag")
    with pytest.raises(Unanswered):
        send(write, (Taken,), clock=clock, pause=lambda _: None)
    assert len(left) == 1


def test_errors_of_another_release_are_announced_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use() -> None:
        for _ in range(2):
            open_objects("s3://bucket/x", options={"region": "us-east-1"})
            open_objects("hdfs://host:1/x")
            with contextlib.suppress(Unavailable):
                CloudStorage("gs://bucket/x", {"proxy_url": "http://127.0.0.1:9", "max_retries": "0"}).exists()

    check_release.cache_clear()
    use()
    assert caplog.records == [], "the releases that the tests run with are those that were read"
    check_release.cache_clear()
    monkeypatch.setattr(retry, "version", lambda package: f"{READS_ERRORS_OF[package]}0.3")
    use()
    check_release.cache_clear()
    assert {(record.name, record.levelno) for record in caplog.records} == {("holdfast.objects", logging.WARNING)}
    said = sorted(record.getMessage().partition(". ")[0] for record in caplog.records)
    assert said == [
        "deltalake 1.60.3 is installed; its errors are read as those of 1.6",
        "hdfs-native 0.140.3 is installed; its errors are read as those of 0.14",
        "obstore 0.120.3 is installed; its errors are read as those of 0.12",
    ]
