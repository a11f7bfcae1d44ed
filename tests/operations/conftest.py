"""The store of checkpoints that plans are made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint_stores import fill


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(str(tmp_path / "store"))
    return tmp_path / "store"
