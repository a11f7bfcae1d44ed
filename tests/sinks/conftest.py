"""Servers and databases for the sinks that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.testing.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def pg_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of this process; each takes a new database."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def dsn(pg_server: PostgresServer) -> str:
    """An empty database."""
    return pg_server.new_database()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL sinks stage `HandFrame`s, without Spark."""
    from postgres_hands import use_hands

    use_hands(monkeypatch.setattr)
