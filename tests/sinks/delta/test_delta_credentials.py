"""A Delta table in the cloud without credentials: `deltalake` itself, and a role that is not there or in trouble."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from holdfast.errors import Unavailable
from holdfast.pipeline.failures import is_permanent
from holdfast.sinks.delta.cloud_storage import CloudStorage

NOBODY = "http://127.0.0.1:9"
STORES: dict[str, dict[str, str]] = {
    "s3://bucket/x": {"region": "us-east-1"},
    "gs://bucket/x": {},
    "abfss://container@account.dfs.core.windows.net/x": {},
}


class InTrouble(BaseHTTPRequestHandler):
    """Answers as a service that is there and fails for now."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "IDENTITY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")  # where tools of Google leave credentials
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", NOBODY)


@pytest.fixture
def role_in_trouble() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), InTrouble) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def storage_at(url: str, asked: str) -> CloudStorage:
    return CloudStorage(url, {**STORES[url], "proxy_url": asked, "max_retries": "1"})


@pytest.mark.parametrize("url", STORES)
def test_missing_credentials_are_told_as_such_until_a_request_was_answered(url: str) -> None:
    storage = storage_at(url, NOBODY)
    with pytest.raises(Unavailable) as missing:
        storage.exists()
    assert missing.value.code == "cloud.credentials"
    assert is_permanent(missing.value), "a pipeline must not start again and again"
    with storage.errors("the table"):
        """Stands for a request that was answered."""
    with pytest.raises(Unavailable) as passing:
        storage.exists()
    assert passing.value.code == "cloud.unavailable"


@pytest.mark.parametrize("url", [url for url in STORES if not url.startswith("s3")])
def test_a_role_that_cannot_be_asked_now_is_waited_for(url: str, role_in_trouble: str) -> None:
    with pytest.raises(Unavailable) as caught:
        storage_at(url, role_in_trouble).exists()
    assert caught.value.code == "cloud.unavailable"
