"""The object storage that the indexes of this folder's tests are in."""

from __future__ import annotations

import pytest

from servers.s3 import S3Server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket that this process's environment leads to."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server.new_bucket()
