"""Servers that the indexes of this folder's tests are on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.postgres import PostgresServer
from holdfast.testing.valkey import ValkeyServer, valkey_server


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One Valkey server for all tests of this process, which keeps everything; each takes a new index."""
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="session")
def index_dsn(pg_server: PostgresServer) -> str:
    """One database for the indexes of all tests of this process; each takes a new index."""
    return pg_server.new_database()
