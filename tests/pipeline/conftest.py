"""What the tests of pipelines share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of this process, without an epoch more at the end of each run."""
    with configured(spark, {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
        yield spark
