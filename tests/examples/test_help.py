"""Every example explains itself, and does nothing else when it is asked to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_help_is_all_that_it_shows(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example), "--help"], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
    assert list(tmp_path.iterdir()) == []
