"""The database that the stores of this folder's tests are in."""

from __future__ import annotations

import pytest

from servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def kv_dsn(pg_server: PostgresServer) -> str:
    """One database for all tests of this process; each takes a new store."""
    return pg_server.new_database()
