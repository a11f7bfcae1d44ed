"""The examples do what they say, also across a lost workdir."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.dataset
import pytest
from deltalake import DeltaTable

from servers.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import cdc  # noqa: E402
import clicks  # noqa: E402
import sensors  # noqa: E402


def arrive(folder: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """One more file of JSON lines."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    (folder / f"{number:03}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def written(folder: Path) -> list[dict[str, Any]]:
    return pyarrow.dataset.dataset(folder, partitioning="hive").to_table().to_pylist()


def test_sessions_survive_the_loss_of_the_workdir(spark: SparkSession, tmp_path: Path) -> None:
    def click(visitor: str, page: str, at: str) -> dict[str, str]:
        return {"visitor": visitor, "page": page, "at": f"2026-01-01T{at}:00Z"}

    def run() -> None:
        clicks.run(spark, *(str(tmp_path / name) for name in ("clicks", "sessions", "checkpoints")), availableNow=True)

    arrive(tmp_path / "clicks", [click("a", "/", "09:00"), click("a", "/cart", "09:10"), click("b", "/", "09:15")])
    run()
    shutil.rmtree(tmp_path / "checkpoints" / "workdir")
    arrive(tmp_path / "clicks", [click("a", "/paid", "09:30"), click("b", "/", "12:00")])
    run()
    found = {
        (row["visitor"], f"{row['began']:%H:%M}"): (row["clicks"], row["pages"])
        for row in written(tmp_path / "sessions")
    }
    assert found == {("a", "09:00"): (3, ["/", "/cart", "/paid"]), ("b", "09:15"): (1, ["/"])}


def test_customers_are_the_same_in_both(spark: SparkSession, tmp_path: Path, pg_server: PostgresServer) -> None:
    dsn = pg_server.new_database()

    def change(op: str, lsn: int, number: int, name: str, city: str) -> dict[str, Any]:
        return {"op": op, "lsn": lsn, "id": number, "name": name, "city": city}

    def run() -> None:
        cdc.run(
            spark,
            str(tmp_path / "changes"),
            dsn,
            str(tmp_path / "lake"),
            str(tmp_path / "checkpoints"),
            availableNow=True,
        )

    arrive(tmp_path / "changes", [change("c", 1, 1, "Ada", "London"), change("c", 2, 2, "Karl", "Graz")])
    run()
    arrive(
        tmp_path / "changes",
        [
            change("u", 3, 1, "Ada", "Paris"),
            change("u", 5, 1, "Ada", "Rome"),
            change("d", 6, 2, "Karl", "Graz"),
            change("c", 7, 3, "Inês", "Porto"),
        ],
    )
    run()
    with psycopg.connect(dsn) as connection:
        serving = connection.execute("SELECT id, name, city, lsn FROM customers ORDER BY id").fetchall()
    lake = DeltaTable(tmp_path / "lake").to_pyarrow_table(columns=["id", "name", "city", "lsn"]).to_pylist()
    assert serving == [(1, "Ada", "Rome", 5), (3, "Inês", "Porto", 7)]
    assert sorted(tuple(row.values()) for row in lake) == serving


def test_late_readings_count_until_their_window_is_written(spark: SparkSession, tmp_path: Path) -> None:
    def reading(celsius: float, at: str) -> dict[str, Any]:
        return {"sensor": "s1", "celsius": celsius, "at": f"2026-01-01T{at}Z"}

    def run() -> None:
        sensors.run(spark, *(str(tmp_path / name) for name in ("readings", "out", "checkpoints")), availableNow=True)

    arrive(tmp_path / "readings", [reading(10, "09:00:00"), reading(20, "09:04:00"), reading(20, "09:04:00")])
    run()
    assert written(tmp_path / "out") == []
    arrive(tmp_path / "readings", [reading(30, "09:12:00"), reading(60, "09:01:00")])  # the second one is late
    run()
    arrive(tmp_path / "readings", [reading(0, "10:00:00"), reading(-9, "09:02:00")])  # in time: no epoch has seen 10:00
    run()
    arrive(tmp_path / "readings", [reading(0, "10:01:00"), reading(-99, "09:03:00")])  # too late now
    run()
    found = [
        (f"{row['since']:%H:%M}", row["least"], row["mean"], row["most"], row["readings"])
        for row in written(tmp_path / "out")
    ]
    assert sorted(found) == [("09:00", -9, 20.25, 60, 4), ("09:10", 30, 30, 30, 1)]


@pytest.mark.parametrize("name", ["cdc", "clicks", "revenue", "sensors", "tail"])
def test_without_arguments_an_example_says_how_to_call_it(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    assert "Spark" not in done.stderr
