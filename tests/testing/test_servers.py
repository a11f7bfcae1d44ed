"""The S3 server keeps the promises that Holdfast relies on."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store, from_url

from servers import s3 as servers
from servers.s3 import S3Server, _one_at_a_time, moto_server

pytestmark = pytest.mark.s3

RACER = """
import http.client, sys
address, keys, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
credential = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
connection = http.client.HTTPConnection(address)
connection.connect()
print("ready", flush=True)
sys.stdin.readline()
for key in range(keys):
    headers = {"If-None-Match": "*", "Authorization": credential}
    connection.request("PUT", f"{name}/{key}", body=b"x", headers=headers)
    reply = connection.getresponse()
    reply.read()
    print(reply.status, flush=True)
"""


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture
def store(s3: S3Server, bucket: str) -> S3Store:
    return S3Store(bucket, config=s3.options)  # type: ignore[arg-type]


def keys(store: S3Store, offset: str | None = None) -> list[str]:
    return [info["path"] for page in obstore.list(store, offset=offset) for info in page]


def test_a_created_object_cannot_be_created_again(store: S3Store) -> None:
    obstore.put(store, "key", b"one", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "key", b"two", mode="create")
    assert bytes(obstore.get(store, "key").bytes()) == b"one"


def test_a_put_with_a_stale_tag_is_refused(store: S3Store) -> None:
    first = obstore.put(store, "key", b"one")
    obstore.put(store, "key", b"two", mode={"e_tag": first["e_tag"]})
    for key in ("key", "absent"):
        with pytest.raises(PreconditionError):
            obstore.put(store, key, b"three", mode={"e_tag": first["e_tag"]})
    assert bytes(obstore.get(store, "key").bytes()) == b"two"


def test_listing_pages_and_starts_after_a_key(store: S3Store) -> None:
    for number in range(5):
        obstore.put(store, f"key-{number}", b"")
    assert keys(store, offset="key-2") == ["key-3", "key-4"]


def test_bulk_deletion_takes_absent_keys(store: S3Store) -> None:
    for name in "abc":
        obstore.put(store, name, b"")
    obstore.delete(store, ["a", "absent", "c"])
    assert keys(store) == ["b"]


def test_of_eight_processes_creating_one_key_one_wins(s3: S3Server) -> None:
    rounds = 20
    address = urllib.parse.urlsplit(s3.endpoint).netloc
    command = [sys.executable, "-c", RACER, address, str(rounds), f"/{s3.new_bucket()}"]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(8)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
        results = [racer.communicate(timeout=60)[0].split() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    for answers in zip(*results, strict=True):
        assert sorted(answers) == ["200"] + ["412"] * 7


def test_only_one_request_at_a_time_is_inside_moto() -> None:
    inside = threading.Semaphore(1)
    overlapped: list[bool] = []

    def application(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        alone = inside.acquire(blocking=False)
        overlapped.append(not alone)
        time.sleep(0.005)
        yield environ["wsgi.input"].read()
        if alone:
            inside.release()

    def ask(number: int) -> bytes:
        body = b"%d" % number
        return b"".join(serialized({"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}, None))

    serialized = _one_at_a_time(application)
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(ask, range(8))) == [b"%d" % number for number in range(8)]
    assert overlapped == [False] * 8


def test_a_client_frozen_in_the_middle_of_a_body_holds_nobody_up_and_stores_nothing(
    s3: S3Server, store: S3Store, bucket: str
) -> None:
    address = urllib.parse.urlsplit(s3.endpoint)
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=10) as frozen:
        frozen.sendall(f"PUT /{bucket}/torn HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf".encode())
        obstore.put(store, "whole", b"body")
        frozen.shutdown(socket.SHUT_WR)
        assert b" 400 " in frozen.recv(1000)
    assert keys(store) == ["whole"]


def test_the_environment_is_enough_for_a_client(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment(bucket).items():
        monkeypatch.setenv(name, value)
    store = from_url(f"s3://{bucket}/folder")
    obstore.put(store, "key", b"body")
    assert [info["path"] for page in obstore.list(store) for info in page] == ["key"]


def test_buckets_are_apart(s3: S3Server) -> None:
    assert s3.new_bucket() != s3.new_bucket()


QUICK = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_the_server_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_BOOT", QUICK)
    with moto_server() as server:
        address = urllib.parse.urlsplit(server.endpoint)
        assert address.hostname == "127.0.0.1"
        assert os.path.exists(f"/proc/{server.pid}")
    assert not os.path.exists(f"/proc/{server.pid}")
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(address.port or 0))):
        pass


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_BOOT", "raise ValueError('no such thing')")
    with pytest.raises(RuntimeError, match="no such thing"), moto_server():
        pass


def test_without_moto_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install"), moto_server():
        pass


def test_the_server_ends_with_the_process_that_started_it() -> None:
    code = """
import json, sys, threading
sys.path[:] = json.loads(sys.argv[1])
from servers import s3 as servers
from servers.s3 import moto_server
with moto_server() as server:
    print(server.pid, flush=True)
    threading.Event().wait()
"""
    owner = subprocess.Popen([sys.executable, "-c", code, json.dumps(sys.path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout as output:
        pid = output.readline().strip()
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)
