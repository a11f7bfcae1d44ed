"""A Delta table, read back by a reader that is not ours, and others who commit to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import CommitProperties, DeltaTable
from sink_places import rows_in_table, staged_in

from holdfast.sinks.delta.log import DeltaLog
from holdfast.sinks.delta.sink import DeltaSink
from holdfast.testing.conformance.sinks import Row, SinkAbilities, SinkUnderTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeltaPlace(SinkUnderTest):
    """One table."""

    abilities = SinkAbilities(exclusive=False)

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark, self.root = spark, tmp_path / "table"

    def visible(self) -> list[Row]:
        return rows_in_table(self.root)

    def leftovers(self) -> list[str]:
        return staged_in(self.root / "_holdfast_staging")

    def open(self) -> DeltaSink:
        raise NotImplementedError

    def bystander(self, times: int = 1) -> None:
        """Somebody else who commits to the same table."""
        for _ in range(times):
            table = DeltaTable(self.root)
            table.create_write_transaction([], "append", table.schema(), [])

    def version(self) -> int:
        return DeltaTable(self.root).version()

    def before_each_commit(self, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
        really = DeltaLog.properties

        def properties(log: DeltaLog, *arguments: Any) -> CommitProperties:
            found = really(log, *arguments)
            act()
            return found

        monkeypatch.setattr(DeltaLog, "properties", properties)


class AppendPlace(DeltaPlace):
    """Rows are appended."""

    def open(self) -> DeltaSink:
        return DeltaSink(self.root)


class MergePlace(DeltaPlace):
    """Rows replace those with their key."""

    def open(self) -> DeltaSink:
        return DeltaSink(self.root, key=["id"])
