"""Bad days of object storage, on the command line: a clear error, the right exit code, and within seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from holdfast.testing.faults.proxy import FaultyProxy, Refuse, Status
from servers.s3 import options_for


def reply(status: int, code: str) -> Status:
    return Status(status, f"<Error><Code>{code}</Code><Message>It says why.</Message></Error>".encode())


CASES = {
    "wrong keys": (reply(403, "SignatureDoesNotMatch"), 8, "cloud.denied"),
    "expired keys": (reply(400, "ExpiredToken"), 8, "cloud.expired"),
    "wrong clock": (reply(403, "RequestTimeTooSkewed"), 8, "cloud.clock"),
    "another region": (reply(301, "PermanentRedirect"), 8, "cloud.region"),
    "no bucket": (reply(404, "NoSuchBucket"), 3, "bucket.not-found"),
    "nobody there": (Refuse(), 8, "cloud.unavailable"),
}
VERBS = {
    "ls": ["ls"],
    "show": ["show"],
    "status": ["status"],
    "verify": ["verify"],
    "recover": ["recover", "--yes"],
    "gc": ["gc", "--yes"],
    "prune": ["prune", "--keep", "1", "--yes"],
    "files": ["files"],
}
SECONDS = 15


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyProxy]:
    """One that answers by itself."""
    with FaultyProxy("http://127.0.0.1:9") as proxy:
        yield proxy


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES)
def test_told_within_seconds(run, proxy: FaultyProxy, case: str, verb: str) -> None:
    fault, exit_code, code = CASES[case]
    proxy.script = lambda _: fault
    word, *rest = VERBS[verb]
    options = [part for name, value in options_for(proxy.endpoint).items() for part in ("--option", f"{name}={value}")]
    began = time.monotonic()
    ran = run(word, "s3://bucket/orders", *rest, "--json", *options)
    assert time.monotonic() - began < SECONDS
    assert ran.code == exit_code, ran.err
    assert ran.error["code"] == code
    assert "://bucket" in ran.err
    assert ran.error["next_step"]
    assert "test-access-key" not in ran.err
