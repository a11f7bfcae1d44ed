"""The database that the indexes of this folder's tests are in."""

from __future__ import annotations

import pytest

from holdfast.testing.postgres import PostgresServer


@pytest.fixture(scope="session")
def index_dsn(pg_server: PostgresServer) -> str:
    """One database for the indexes of all tests of this process; each takes a new index."""
    return pg_server.new_database()
