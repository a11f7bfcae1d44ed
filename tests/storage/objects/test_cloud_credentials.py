"""A store in the cloud without credentials: obstore itself, and a network on which nothing answers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from obstore.store import MemoryStore

from holdfast.errors import HoldfastError, Unavailable
from holdfast.pipeline.failures import is_permanent
from holdfast.storage.objects import CloudObjects, ObjectStore, open_objects

STORES: dict[str, tuple[dict[str, str], str]] = {
    "s3://bucket/x": ({}, "AWS_ACCESS_KEY_ID"),
    "gs://bucket/x": ({}, "GOOGLE_APPLICATION_CREDENTIALS"),
    "az://container/x": ({"azure_storage_account_name": "account"}, "AZURE_STORAGE_ACCOUNT_KEY"),
}
ACTS: dict[str, Callable[[ObjectStore], Any]] = {
    "info": lambda objects: objects.info("a"),
    "create": lambda objects: objects.create("a", [b"1"]),
}
SECONDS = {"info": 15, "create": 5}


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A proxy that never answers, as a role's address outside of a cloud, and an environment without settings."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "IDENTITY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")  # where tools of Google leave credentials
    with socket.socket() as deaf, socket.socket() as one, socket.socket() as two:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for full in (one, two):
            full.setblocking(False)
            full.connect_ex(deaf.getsockname())
        yield f"http://127.0.0.1:{deaf.getsockname()[1]}"


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("url", STORES)
def test_missing_credentials_are_told_within_seconds(url: str, act: str, silence: str) -> None:
    settings, variable = STORES[url]
    objects = open_objects(url, options={**settings, "proxy_url": silence})
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        ACTS[act](objects)
    took = time.monotonic() - began
    assert caught.value.code == "cloud.credentials"
    assert variable in str(caught.value.next_step)
    assert is_permanent(caught.value), "a pipeline must not start again and again"
    assert took < SECONDS[act]


def test_a_role_that_was_there_before_is_asked_again() -> None:
    """A driver of many hours does not end because its machine's role cannot be asked for a moment."""
    objects = CloudObjects(MemoryStore(), "gs://bucket/x")
    failure = RuntimeError("Error performing GET http://169.254.169.254/computeMetadata/v1/x legacy::Error(Connect,")

    def code() -> str | None:
        with pytest.raises(HoldfastError) as caught, objects._explained("a"):
            raise failure
        return caught.value.code

    assert code() == "cloud.credentials"
    objects.create("a", [b"1"])
    assert code() == "cloud.unavailable"
