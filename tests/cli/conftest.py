"""Fixtures of the command line's tests."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_running import Ran

from checkpoint_stores import fill
from holdfast.cli import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)

    def invoke(*arguments: object) -> Ran:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO())
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main([str(argument) for argument in arguments])
            out.flush(), err.flush()
        return Ran(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]

    return invoke


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    """Three sound checkpoints on disk."""
    fill(str(tmp_path / "store"))
    return tmp_path / "store"


_names = iter(range(10**9))


@pytest.fixture
def memory_url() -> str:
    """Three sound checkpoints in this process's memory."""
    address = f"memory://cli-{next(_names)}"
    fill(address)
    return address
