"""Lists that change only on purpose: `HOLDFAST_REGENERATE=1 pytest tests/formats` writes them anew."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent / "golden"


def compare(name: str, found: Any) -> None:
    """Fail if this is not what the file has; with HOLDFAST_REGENERATE in the environment, the file becomes it."""
    path = GOLDEN / name
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("HOLDFAST_REGENERATE"):
        path.write_text(text)
    expected = path.read_text()
    if json.loads(text) != json.loads(expected):
        diff = "\n".join(difflib.unified_diff(expected.splitlines(), text.splitlines(), name, "found", lineterm=""))
        pytest.fail(
            f"{name} differs. What it lists is an interface: if the change is meant, say so in CHANGELOG.md and run "
            f"HOLDFAST_REGENERATE=1 pytest tests/formats\n{diff}",
            pytrace=False,
        )
