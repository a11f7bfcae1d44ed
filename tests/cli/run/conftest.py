"""Fixture of the tests of `holdfast run`: a pipeline's file."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

TELLING = """
import sys
sys.path.insert(0, {tests!r})
from pipeline_stores import report
from holdfast.spark import Notice
from holdfast.pipeline.reports import tell
"""


@pytest.fixture
def file(tmp_path):
    """Writes a pipeline's file whose body may tell events as a pipeline does."""

    def write(body: str, name: str = "orders.py") -> Path:
        path = tmp_path / name
        path.write_text(TELLING.format(tests=str(Path(__file__).parents[2])) + textwrap.dedent(body))
        return path

    return write
