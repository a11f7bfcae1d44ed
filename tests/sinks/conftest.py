"""Fixtures of the sinks' tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of this process, set as Spark sets it for the epochs of a stateful query."""
    with configured(spark, {"spark.sql.adaptive.enabled": "false"}):
        yield spark


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL sinks stage `HandFrame`s, without Spark."""
    from postgres_hands import use_hands

    use_hands(monkeypatch.setattr)
