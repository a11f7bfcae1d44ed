"""Services that refuse, or ask for fewer requests: what is said of it, and how often they are asked again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.pipeline.failures import is_permanent
from holdfast.storage.objects import ObjectStore, open, open_objects, retry
from holdfast.testing.faults.proxy import FaultyProxy, LostReply, Status, once
from servers.s3 import S3Server, options_for


def reply(status: int, code: str) -> Status:
    text = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>It says why.</Message></Error>"
    return Status(status, text.encode())


REFUSALS = {
    "wrong keys": (reply(403, "SignatureDoesNotMatch"), "cloud.denied"),
    "denied": (reply(403, "AccessDenied"), "cloud.denied"),
    "expired": (reply(400, "ExpiredToken"), "cloud.expired"),
    "clock": (reply(403, "RequestTimeTooSkewed"), "cloud.clock"),
    "region of the signature": (reply(400, "AuthorizationHeaderMalformed"), "cloud.region"),
    "region of the bucket": (reply(301, "PermanentRedirect"), "cloud.region"),
}
ACTS: dict[str, Callable[[ObjectStore], Any]] = {
    "info": lambda objects: objects.info("a"),
    "read": lambda objects: objects.read("a", limit=9),
    "list": lambda objects: objects.list("a/"),
    "create": lambda objects: objects.create("a", [b"1"]),
    "update": lambda objects: objects.update("a", lambda _: b"2"),
    "delete": lambda objects: objects.delete(["a"]),
}


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    """One that answers by itself."""
    with FaultyProxy("http://127.0.0.1:9") as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultyProxy) -> ObjectStore:
    return open_objects("s3://bucket/store", options=options_for(proxy.endpoint))


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("why", REFUSALS)
def test_a_refusal_is_told_at_once_in_the_service_s_words(
    proxy: FaultyProxy, through: ObjectStore, why: str, act: str
) -> None:
    fault, code = REFUSALS[why]
    proxy.script = lambda _: fault
    with pytest.raises(Unavailable) as caught:
        ACTS[act](through)
    assert caught.value.code == code
    assert fault.code == 301 or "It says why" in caught.value.message
    assert "<" not in caught.value.message
    assert caught.value.unchanged
    assert caught.value.next_step
    assert is_permanent(caught.value)
    assert len(proxy.requests) == (2 if act == "info" and fault.code != 301 else 1), "a HEAD is refused without words"


def test_a_deletion_that_is_denied_in_an_answer_without_a_fault(proxy: FaultyProxy, through: ObjectStore) -> None:
    error = "<Error><Key>store/a</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    proxy.script = lambda _: Status(200, f"<?xml version='1.0'?><DeleteResult>{error}</DeleteResult>".encode())
    with pytest.raises(Unavailable, match="Access Denied") as caught:
        through.delete(["a", "b"])
    assert caught.value.code == "cloud.denied"


@pytest.mark.s3
@pytest.mark.parametrize("act", ACTS)
def test_a_lost_reply_is_asked_for_again(s3_server: S3Server, act: str) -> None:
    """Also that of a bulk deletion, which obstore does not repeat."""
    address = f"s3://{s3_server.new_bucket()}/store"
    open_objects(address, options=s3_server.options).create("b" if act == "create" else "a", [b"1"])
    with FaultyProxy(s3_server.endpoint) as proxy:
        proxy.script = once(LostReply(reset=True))
        ACTS[act](open_objects(address, options=options_for(proxy.endpoint)))
        assert len(proxy.requests) > 1


class TestSlowDown:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many tries as ever, without the pauses between them."""
        monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
        monkeypatch.setattr(retry, "SLOWER", (0.001,) * len(retry.SLOWER))
        backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
        monkeypatch.setitem(open.RETRIES_OF_READS, "backoff", backoff)

    @pytest.mark.s3
    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("busy", [reply(503, "SlowDown"), Status(429)], ids=["503", "429"])
    def test_a_busy_service_is_waited_for(self, s3_server: S3Server, act: str, busy: Status) -> None:
        address = f"s3://{s3_server.new_bucket()}/store"
        direct = open_objects(address, options=s3_server.options)
        if act != "create":
            direct.create("a", [b"1"])
        with FaultyProxy(s3_server.endpoint) as proxy:
            count = itertools.count(1)
            proxy.script = lambda _: busy if next(count) <= len(retry.SLOWER) else None
            ACTS[act](open_objects(address, options=options_for(proxy.endpoint)))
        found = [(info.key, direct.read(info.key, limit=9)) for info in direct.list("")]
        assert found == {"update": [("a", b"2")], "delete": []}.get(act, [("a", b"1")])

    @pytest.mark.parametrize("act", ACTS)
    def test_one_that_stays_busy_is_given_up(self, proxy: FaultyProxy, through: ObjectStore, act: str) -> None:
        proxy.script = lambda _: reply(503, "SlowDown")
        with pytest.raises((Unavailable, OutcomeUnknown), match="SlowDown: It says why") as caught:
            ACTS[act](through)
        is_write = act in ("create", "update")  # which cannot be read back either
        assert caught.value.code == ("object.outcome-unknown" if is_write else "cloud.unavailable")
        assert len(retry.SLOWER) < len(proxy.requests) <= 9 * (len(retry.SLOWER) + 1)


def test_a_busy_service_is_waited_for_a_minute() -> None:
    assert 55 <= sum(retry.SLOWER) <= 65
