"""Real faults over real HTTP, seen by a plain client and by obstore."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import S3Store

from holdfast.testing.faults.proxy import FaultyProxy, Hold, LostReply, Refuse, Request, Stall, Status, once
from servers.s3 import S3Server, options_for

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture
def direct(s3: S3Server, bucket: str) -> S3Store:
    """Round the proxy, to see what the server really has."""
    return S3Store(bucket, config=s3.options)  # type: ignore[arg-type]


@pytest.fixture
def store(proxy: FaultyProxy, bucket: str) -> S3Store:
    """Without repetition: a fault reaches the caller."""
    return S3Store(
        bucket,
        config=options_for(proxy.endpoint),  # type: ignore[arg-type]
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
    )


@pytest.fixture
def stubborn(proxy: FaultyProxy, bucket: str) -> S3Store:
    """As obstore comes."""
    return S3Store(bucket, config=options_for(proxy.endpoint))  # type: ignore[arg-type]


def keys(store: S3Store) -> list[str]:
    return [info["path"] for page in obstore.list(store) for info in page]


def test_without_a_script_it_is_only_a_proxy(store: S3Store, direct: S3Store, proxy: FaultyProxy, bucket: str) -> None:
    body = bytes(range(256)) * 4096
    obstore.put(store, "folder/a key", body, use_multipart=False)
    assert (
        bytes(obstore.get(store, "folder/a key").bytes()) == body == bytes(obstore.get(direct, "folder/a key").bytes())
    )
    assert obstore.head(store, "folder/a key")["size"] == len(body)
    assert bytes(obstore.get_range(store, "folder/a key", start=256, length=3)) == b"\0\1\2"
    assert keys(store) == ["folder/a key"]
    obstore.delete(store, ["folder/a key"])
    assert keys(direct) == []
    seen = [(request.method, request.path, sorted(request.query)) for request in proxy.requests]
    assert seen == [
        ("PUT", f"/{bucket}/folder/a key", []),
        ("GET", f"/{bucket}/folder/a key", []),
        ("HEAD", f"/{bucket}/folder/a key", []),
        ("GET", f"/{bucket}/folder/a key", []),
        ("GET", f"/{bucket}", ["list-type"]),
        ("POST", f"/{bucket}", ["delete"]),
    ]
    assert [request.number for request in proxy.requests] == list(range(6))
    assert proxy.requests[0].size == len(body)
    proxy.forget()
    assert proxy.requests == []


def test_connections_are_kept_and_chunked_bodies_pass(proxy: FaultyProxy, direct: S3Store, bucket: str) -> None:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(proxy.endpoint).netloc, timeout=10)
    connection.connect()
    port = connection.sock.getsockname()[1]
    for number in range(3):
        connection.request("PUT", f"/{bucket}/{number}", body=iter([b"bo", b"dy"]), encode_chunked=True)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200
        assert connection.sock is not None
        assert connection.sock.getsockname()[1] == port
    connection.close()
    assert bytes(obstore.get(direct, "2").bytes()) == b"body"


def test_a_lost_reply_was_done(store: S3Store, direct: S3Store, proxy: FaultyProxy) -> None:
    proxy.script = lambda request: LostReply()
    with pytest.raises(GenericError):
        obstore.put(store, "key", b"body", mode="create")
    assert keys(direct) == ["key"]


def test_a_refused_request_was_not_done(store: S3Store, direct: S3Store, proxy: FaultyProxy) -> None:
    proxy.script = lambda request: Refuse()
    with pytest.raises(GenericError):
        obstore.put(store, "key", b"body", mode="create")
    assert keys(direct) == []
    assert len(proxy.requests) == 1


def test_a_status_answers_in_place_of_the_server(store: S3Store, direct: S3Store, proxy: FaultyProxy) -> None:
    proxy.script = lambda request: Status(403, b"<Error><Code>AccessDenied</Code></Error>")
    with pytest.raises(PermissionDeniedError, match="AccessDenied"):
        obstore.put(store, "key", b"body", mode="create")
    assert keys(direct) == []


@pytest.mark.parametrize("fault", [Refuse(), Status(500), Status(503), Status(429)])
def test_obstore_repeats_what_failed_once(stubborn: S3Store, proxy: FaultyProxy, fault: Refuse | Status) -> None:
    proxy.script = once(fault)
    obstore.put(stubborn, "key", b"body", mode="create")
    assert len(proxy.requests) == 2


def test_obstore_takes_its_own_lost_create_for_somebody_elses(stubborn: S3Store, proxy: FaultyProxy) -> None:
    proxy.script = once(LostReply())
    with pytest.raises(AlreadyExistsError):
        obstore.put(stubborn, "key", b"body", mode="create")
    assert len(proxy.requests) == 2


def test_obstore_takes_a_409_for_an_object_that_exists(stubborn: S3Store, direct: S3Store, proxy: FaultyProxy) -> None:
    proxy.script = once(Status(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>"))
    with pytest.raises(AlreadyExistsError):
        obstore.put(stubborn, "key", b"body", mode="create")
    assert keys(direct) == []


def test_once_waits_for_the_request_that_fits(store: S3Store, proxy: FaultyProxy) -> None:
    def is_create(request: Request) -> bool:
        return request.headers.get("if-none-match") == "*"

    proxy.script = once(Refuse(), is_create)
    obstore.put(store, "one", b"")
    with pytest.raises(GenericError):
        obstore.put(store, "two", b"", mode="create")
    obstore.put(store, "two", b"", mode="create")


def test_a_held_request_waits_while_others_pass(store: S3Store, direct: S3Store, proxy: FaultyProxy) -> None:
    hold = Hold()
    proxy.script = once(hold)
    with ThreadPoolExecutor() as pool:
        held = pool.submit(obstore.put, store, "held", b"")
        hold.wait_until_held()
        obstore.put(store, "other", b"")
        assert keys(direct) == ["other"]
        assert not held.done()
        hold.release()
        held.result(timeout=10)
    assert keys(direct) == ["held", "other"]


def test_a_held_reply_is_of_a_request_that_was_done(store: S3Store, direct: S3Store, proxy: FaultyProxy) -> None:
    hold = Hold(reply=True)
    proxy.script = once(hold)
    with ThreadPoolExecutor() as pool:
        held = pool.submit(obstore.put, store, "held", b"")
        hold.wait_until_held()
        assert keys(direct) == ["held"]
        assert not held.done()
        hold.release()
        held.result(timeout=10)


def test_a_hold_that_nothing_meets_says_so() -> None:
    with pytest.raises(TimeoutError, match="No request"):
        Hold().wait_until_held(0.01)


def test_a_stall_is_longer_than_the_patience_of_a_client(bucket: str, direct: S3Store, proxy: FaultyProxy) -> None:
    impatient = S3Store(
        bucket,
        config=options_for(proxy.endpoint),  # type: ignore[arg-type]
        client_options={"timeout": "100ms"},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
    )
    proxy.script = lambda request: Stall(0.3)
    with pytest.raises(GenericError, match=r"(?i)time"):
        obstore.put(impatient, "key", b"")


def test_closing_drops_what_is_held(s3: S3Server, bucket: str, direct: S3Store) -> None:
    hold = Hold()
    with ThreadPoolExecutor() as pool:
        with FaultyProxy(s3.endpoint) as proxy:
            proxy.script = lambda request: hold
            store = S3Store(
                bucket,
                config=options_for(proxy.endpoint),  # type: ignore[arg-type]
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
            )
            held = pool.submit(obstore.put, store, "key", b"")
            hold.wait_until_held()
            closing = time.monotonic()
        assert time.monotonic() - closing < 10, "it waited for the hold"
        with pytest.raises(GenericError):
            held.result(timeout=10)
    assert keys(direct) == []


def test_an_error_in_the_script_comes_out(s3: S3Server, bucket: str) -> None:
    def broken(request: Request) -> None:
        raise ZeroDivisionError(request.path)

    def ask_through_it() -> None:
        with FaultyProxy(s3.endpoint) as proxy:
            proxy.script = broken
            connection = http.client.HTTPConnection(urllib.parse.urlsplit(proxy.endpoint).netloc, timeout=10)
            connection.request("GET", f"/{bucket}")
            assert connection.getresponse().status == 500
            connection.close()

    with pytest.raises(ZeroDivisionError, match=bucket):
        ask_through_it()


def test_serialized_requests_are_at_the_server_one_at_a_time(s3: S3Server) -> None:
    with FaultyProxy(s3.endpoint) as slow_server:
        together = threading.Lock()
        overlaps: list[str] = []

        def alone(request: Request) -> Stall | None:
            if not together.acquire(blocking=False):
                overlaps.append(request.path)
                return None
            threading.Event().wait(0.02)
            together.release()
            return None

        slow_server.script = alone
        bucket = s3.new_bucket()
        for serialize in (False, True):
            overlaps.clear()
            with FaultyProxy(slow_server.endpoint, serialize=serialize) as proxy:
                store = S3Store(bucket, config=options_for(proxy.endpoint))  # type: ignore[arg-type]
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(lambda number, store=store: obstore.put(store, str(number), b""), range(8)))
            assert bool(overlaps) is not serialize


def test_only_http_can_be_proxied() -> None:
    with pytest.raises(ValueError, match="https"):
        FaultyProxy("https://example.org")
