"""A Delta table on S3, read back by readers that are not ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.staged_name import parse
from holdfast.storage.objects.open import open_objects
from holdfast.testing.conformance.sinks import Row, SinkAbilities, SinkUnderTest
from servers.s3 import S3Server, environment_for, options_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class S3Table:
    """A table in a bucket, looked at directly: not through the sink, Spark, or a proxy."""

    def __init__(self, address: str, endpoint: str) -> None:
        self.address = address
        self._options = environment_for(endpoint)
        self.objects = open_objects(address, options=options_for(endpoint))

    def open(self) -> DeltaTable:
        return DeltaTable(self.address, storage_options=self._options)

    def read(self) -> list[dict[str, Any]]:
        return sorted(self.open().to_pyarrow_table().to_pylist(), key=str)

    def rows(self) -> list[Row]:
        return [(row["id"], row["name"]) for row in self.open().to_pyarrow_table().to_pylist()]

    def staged(self) -> list[str]:
        keys = [info.key.split("/")[1] for info in self.objects.list("_holdfast_staging/")]
        return sorted({name for name in keys if parse(name)})

    def data(self) -> list[str]:
        return [info.key for info in self.objects.list("holdfast/") if info.key.endswith(".parquet")]

    def bystander(self, times: int = 1) -> None:
        """Somebody else who commits to the same table."""
        for _ in range(times):
            table = self.open()
            table.create_write_transaction([], "append", table.schema(), [])


class S3Place(SinkUnderTest):
    """One table."""

    abilities = SinkAbilities(exclusive=False)
    key: str | None = None

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, s3a_bucket: str, s3_server: S3Server) -> None:
        self.spark, self.bucket, self.endpoint = spark, s3a_bucket, s3_server.endpoint
        self.table = S3Table(f"s3://{s3a_bucket}/lake/of ü", s3_server.endpoint)

    def open(self) -> DeltaSink:
        return DeltaSink(f"s3a://{self.bucket}/lake/of ü/", key=self.key)

    def visible(self) -> list[Row]:
        return self.table.rows()

    def leftovers(self) -> list[str]:
        return self.table.staged()


class AppendPlace(S3Place):
    """Rows are appended."""


class MergePlace(S3Place):
    """Rows replace those with their key."""

    key = "id"
