"""What a PostgreSQL sink takes and says of itself, without a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.errors import Invalid
from holdfast.sinks.postgres.sink import PostgresSink


def test_keys_and_delete_columns_that_cannot_be_are_refused() -> None:
    for wrong in (
        {"key": []},
        {"key": ["a", "a"]},
        {"key": ["x" * 64]},
        {"delete": "gone"},
        {"key": "gone", "delete": "gone"},
    ):
        with pytest.raises(Invalid):
            PostgresSink("dbname=x", "t", **wrong)  # type: ignore[arg-type]


def test_a_sink_describes_its_table_without_the_password() -> None:
    sink = PostgresSink("postgresql://me:secret@db.example:5433/shop", "sales.orders", "id", delete="gone")
    assert sink.describe() == {
        "kind": "postgres",
        "table": '"sales"."orders"',
        "key": ["id"],
        "delete": "gone",
        "host": "db.example",
        "port": "5433",
        "dbname": "shop",
    }
    other = PostgresSink("postgresql://you:other@db.example:5433/shop", "sales.orders", ["id"], delete="gone")
    assert other.describe() == sink.describe()
    sink.describe()["key"] = "changed"
    assert other.describe() == sink.describe()


def test_importing_needs_neither_psycopg_nor_pyspark() -> None:
    program = """
import sys
for name in ("psycopg", "pyspark", "pyarrow"):
    sys.modules[name] = None
import holdfast.sinks.postgres.sink, holdfast.errors
try:
    holdfast.sinks.PostgresSink("dbname=x", "t")
except holdfast.errors.Invalid as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'holdfast[postgres]'" in done.stdout
