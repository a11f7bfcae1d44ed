"""Where a pipeline keeps Spark's directory if nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.pipeline.pipeline import Pipeline


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "FILE://{path}", "File://{path}"])
def test_beside_the_checkpoints_of_a_local_store(form: str, tmp_path: Path) -> None:
    pipeline = Pipeline("orders", checkpoints=form.format(path=tmp_path / "orders"))
    assert pipeline.workdir.path == tmp_path / "orders" / "workdir"


def test_in_the_state_home_for_a_store_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pipeline = Pipeline("orders", checkpoints="memory://shop")
    assert pipeline.workdir.path.is_relative_to(tmp_path)
