"""A real Azure blob server on loopback for as long as a `with` block: Azurite, in a process of its own.

`scripts/azurite.sh` fetches it once, with npm. Without Node the tests that need it are left out, and the last lines of
the run say so. It has no ADLS Gen2 endpoint (`dfs`), and keeps everything in memory.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import os
import re
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from servers.process import Kept

START_TIMEOUT = 60.0
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that every Azurite has; they are public."""
API_VERSION = "2021-12-02"

_SCRIPT = Path(__file__).parents[2] / "scripts" / "azurite.sh"
_LEFT_OUT = "needs Azurite from npm"
_LISTENS = re.compile(r"successfully listens on (http://127\.0\.0\.1:\d+)")


def options_for(endpoint: str) -> dict[str, str]:
    """Options of `open_store` for this endpoint, such as a proxy before the server."""
    return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": f"{endpoint}/{ACCOUNT}"}


class AzureServer:
    """A running server. Its containers are called buckets, as elsewhere: make a new one for each test."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    @property
    def options(self) -> dict[str, str]:
        return options_for(self.endpoint)

    def new_bucket(self) -> str:
        """Make an empty container and return its name, which no other container has."""
        name = f"container-{uuid.uuid4().hex}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": API_VERSION}
        signed = [f"{name}:{value}" for name, value in headers.items()]
        resource = [f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
        text = "\n".join(["PUT", *[""] * 11, *signed, *resource])
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(text)}"
        url = f"{self.endpoint}/{ACCOUNT}/{name}?restype=container"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback: whatever HTTP_PROXY says
        opener.open(urllib.request.Request(url, headers=headers, method="PUT"), timeout=START_TIMEOUT).close()
        return name


@contextlib.contextmanager
def azurite_server() -> Iterator[AzureServer]:
    """Start a server on a free port of 127.0.0.1; it takes blobs when this yields and is killed at the end.

    It also ends by itself when this process does, however that ends. The test that asks for it is left out if Azurite
    cannot be had.
    """
    program = _program() or pytest.skip(_LEFT_OUT)
    home = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = Kept(Path(tempfile.mkdtemp(prefix="holdfast-azure-")), end_with="KILL", environment=home)
    quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    try:
        process.start([program, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", "0", *quiet])
        yield AzureServer(_listening(process))
    finally:
        process.end()


def left_out(reasons: Iterable[str]) -> list[str]:
    """The last lines of a run, by the reasons why tests were skipped."""
    count = sum(_LEFT_OUT in reason for reason in reasons)
    if not count:
        return []
    return [f"Left out: {count} tests on Azure that need Azurite.", "To run them, install Node 18 or newer with npm."]


def _signature(text: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()


@functools.cache
def _program() -> str | None:
    done = subprocess.run([str(_SCRIPT)], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def _listening(process: Kept) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        if found := _LISTENS.search(process.said):
            return found[1]
        if time.monotonic() > deadline:
            raise TimeoutError(f"The Azure test server did not start: {process.said}")
        time.sleep(0.05)
