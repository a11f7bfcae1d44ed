"""Servers that the stores of this folder's tests are on."""

from __future__ import annotations

import pytest

from servers.postgres import PostgresServer
from servers.s3 import S3Server


@pytest.fixture(scope="session")
def projection_dsn(pg_server: PostgresServer) -> str:
    """One database for the stores of all tests of this process; each takes a new store."""
    return pg_server.new_database()


@pytest.fixture(scope="session")
def shared_bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def bucket(s3_server: S3Server, shared_bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket that this process's environment leads to."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return shared_bucket
