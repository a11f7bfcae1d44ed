"""What the tests of workdirs share."""

from __future__ import annotations

from pathlib import Path

import pytest
from snapshots import Driver

from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest


@pytest.fixture
def driver(place: StoreUnderTest, tmp_path: Path) -> Driver:
    return Driver(place, tmp_path / "work")
