"""A PostgreSQL table, read back with psycopg; real server, real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.testing.conformance.sinks import ExactlyOnceConformance, Row, SinkAbilities

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PostgresPlace(ExactlyOnceConformance):
    abilities = SinkAbilities(exclusive=False)

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession, dsn: str) -> None:
        self.spark, self.dsn = spark, dsn

    def visible(self) -> list[Row]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute("SELECT id, name FROM out").fetchall()

    def leftovers(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'holdfast_staged_%'")
            return [name for (name,) in found]


class TestAppend(PostgresPlace):
    def open(self) -> PostgresSink:
        return PostgresSink(self.dsn, "out")


class TestUpsert(PostgresPlace):
    def open(self) -> PostgresSink:
        return PostgresSink(self.dsn, "out", key=["id"])
