"""Fixtures of the tests of `projections`: a shop's store, and the code of its projections."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from shop_store import SHOP, fill, url_of

from holdfast.projections import open_projections


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    before = time.time() - 300
    with open_projections(url_of(made), clock=lambda: before) as store:
        fill(store)
    return made


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))  # back at the end: a projection's directory is put on it
    made = tmp_path / "shop.py"
    made.write_text(SHOP)
    return made
