"""What the tests of pipelines share: settings for few rows, and a folder for all workers of one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from works import FEW_ROWS
from workshop import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of this process, set for few rows, and without an epoch more at the end of each run."""
    with configured(spark, FEW_ROWS | {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
        yield spark


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-by-pipelines"
    folder.mkdir(exist_ok=True)
    return folder
