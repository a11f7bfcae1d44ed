"""Where a pipeline keeps Spark's directory if nobody says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.pipeline import pipeline as module
from holdfast.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "FILE://{path}", "File://{path}"])
def test_beside_the_checkpoints_of_a_local_store(form: str, tmp_path: Path) -> None:
    pipeline = Pipeline("orders", checkpoints=form.format(path=tmp_path / "orders"))
    assert pipeline.workdir.path == tmp_path / "orders" / "workdir"


def test_in_the_state_home_for_a_store_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pipeline = Pipeline("orders", checkpoints="memory://shop")
    assert pipeline.workdir.path.is_relative_to(tmp_path)


def test_a_reference_table_on_a_cluster_asks_the_workdir_beside_the_checkpoints(
    spark: SparkSession, s3a_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one on this machine's disk would never have committed the last epoch, so that no newer version was read."""
    monkeypatch.setattr(module, "is_one_process", lambda session: False)
    pipeline = Pipeline("orders", checkpoints=f"s3a://{s3a_bucket}/orders")
    pipeline.table("rates", lambda version: spark.range(1), version="1")
    assert pipeline.workdir.address == f"s3a://{s3a_bucket}/orders/workdir"
