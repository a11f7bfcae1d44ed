"""The database and the object storage that the indexes of this folder's tests are in."""

from __future__ import annotations

import pytest

from servers.postgres import PostgresServer
from servers.s3 import S3Server


@pytest.fixture(scope="session")
def index_dsn(pg_server: PostgresServer) -> str:
    """One database for the indexes of all tests of this process; each takes a new index."""
    return pg_server.new_database()


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket that this process's environment leads to."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server.new_bucket()
