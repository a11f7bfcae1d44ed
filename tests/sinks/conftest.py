"""Fixtures of the sinks' tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL sinks stage `HandFrame`s, without Spark."""
    from postgres_hands import use_hands

    use_hands(monkeypatch.setattr)
