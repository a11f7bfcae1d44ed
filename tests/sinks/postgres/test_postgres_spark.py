"""What only shows with Spark: types, time zones, tasks, and where the password goes."""

from __future__ import annotations

import datetime
import decimal
import json
import logging
import math
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from postgres_hands import ask, at, opened, staging_tables

from holdfast.base.steps import observe
from holdfast.errors import HoldfastError, Unavailable
from holdfast.sinks.postgres import stage as postgres_loading
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import RowsRefused
from servers.postgres import PASSWORD, PostgresServer
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UTC = datetime.UTC


def deliver(dsn: str, frame: DataFrame, epoch: int = 1, key: Any = None, **options: Any) -> None:
    sink = PostgresSink(dsn, "out", key, **options)
    sink.prepare(frame.schema, at(0))
    sink.commit(sink.stage(frame, at(epoch)), at(epoch))


def test_every_type_comes_back(spark: SparkSession, dsn: str) -> None:
    frame = spark.sql("""
        SELECT tinyint(-128) AS i1, smallint(-32768) AS i2, int(-2147483648) AS i4, -9223372036854775808L AS i8,
            float('0.1') AS f4, double('1e-300') AS f8, double('NaN') AS nan, double('-Infinity') AS inf,
            cast('-1234567890123456789.000000001' AS decimal(38,9)) AS d, cast('1e-9' AS decimal(38,18)) AS tiny,
            'a\\tb\\nc\\\\d "é" 😀' AS s, '' AS empty, cast(null AS string) AS missing, true AS b,
            date'0001-01-01' AS day, timestamp'2026-03-29 01:30:00.123456 Europe/Berlin' AS ts,
            timestamp_ntz'2026-03-29 02:30:00.000001' AS ntz, X'00FF5C' AS bin,
            array(1L, null, 3L) AS longs, array('x,"y"', null, 'NULL', '', '{\\\\}') AS texts, array() AS nothing,
            array(array(1, 2), array(3, 4)) AS matrix, array(X'00') AS bins,
            array(timestamp'2026-01-01 00:00:00 UTC') AS times,
            named_struct('a', 1, 'b', cast(null AS int), 'when', timestamp'2026-01-01 12:00:00 UTC') AS st,
            map('k', array(1.50BD)) AS m, array(named_struct('x', 1)) AS structs
    """).drop("nothing")
    deliver(dsn, frame)
    with psycopg.connect(dsn) as connection:
        connection.execute("SET timezone = 'UTC'")
        cursor = connection.execute("SELECT * FROM out")
        assert cursor.description is not None
        (values,) = cursor.fetchall()
        found = dict(zip((column.name for column in cursor.description), values, strict=True))
    assert math.isnan(found.pop("nan"))
    assert found == {
        "i1": -128,
        "i2": -32768,
        "i4": -(2**31),
        "i8": -(2**63),
        "f4": 0.1,
        "f8": 1e-300,
        "inf": -math.inf,
        "d": decimal.Decimal("-1234567890123456789.000000001"),
        "tiny": decimal.Decimal("1e-9"),
        "s": 'a\tb\nc\\d "é" 😀',
        "empty": "",
        "missing": None,
        "b": True,
        "day": datetime.date(1, 1, 1),
        "ts": datetime.datetime(2026, 3, 29, 0, 30, 0, 123456, UTC),
        "ntz": datetime.datetime(2026, 3, 29, 2, 30, 0, 1),
        "bin": b"\x00\xff\\",
        "longs": [1, None, 3],
        "texts": ['x,"y"', None, "NULL", "", "{\\}"],
        "matrix": [[1, 2], [3, 4]],
        "bins": [b"\x00"],
        "times": [datetime.datetime(2026, 1, 1, tzinfo=UTC)],
        "st": {"a": 1, "b": None, "when": "2026-01-01T12:00:00.000Z"},
        "m": {"k": [1.50]},
        "structs": [{"x": 1}],
    }


def test_columns_that_were_there_before(spark: SparkSession, dsn: str) -> None:
    """Narrower, wider, or of a type that Spark has not: the value is the same, or it is refused."""
    ask(
        dsn,
        "CREATE TABLE out (n serial PRIMARY KEY, small smallint, wide numeric, half float8, halves float8[], "
        "id uuid, doc jsonb, list jsonb, at timestamptz(0), stamp timestamptz DEFAULT now())",
    )
    frame = spark.sql("""
        SELECT 7L AS small, 7L AS wide, float('0.1') AS half, array(float('0.1')) AS halves,
            '6f1f4f5e-1e6e-4b5e-8b1a-2b3c4d5e6f70' AS id, '{"a": 1.5}' AS doc, array('x') AS list,
            timestamp'2026-01-01 00:00:00.6 UTC' AS at""")
    deliver(dsn, frame)
    exact = 0.10000000149011612
    found = ask(
        dsn, "SELECT small, wide, half, halves, id::text, doc, list, at AT TIME ZONE 'UTC', stamp IS NULL FROM out"
    )
    assert found == [
        (
            7,
            7,
            exact,
            [exact],
            "6f1f4f5e-1e6e-4b5e-8b1a-2b3c4d5e6f70",
            {"a": 1.5},
            ["x"],
            datetime.datetime(2026, 1, 1, 0, 0, 1),
            False,
        )
    ]


def test_ragged_arrays_are_refused(spark: SparkSession, dsn: str) -> None:
    with pytest.raises(RowsRefused, match="column 'a'"):
        deliver(dsn, spark.sql("SELECT array(array(1), array(2, 3)) AS a"))


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_instants_whatever_the_time_zones(zone: str, spark: SparkSession, dsn: str) -> None:
    """The session's, the database's: the instant is the same. So is a time without zone, by its digits."""
    name = ask(dsn, "SELECT current_database()")[0]
    ask(
        dsn, f"ALTER DATABASE {name} SET timezone = 'Pacific/Chatham'; ALTER DATABASE {name} SET datestyle = 'SQL, DMY'"
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.sql(
            "SELECT timestamp_micros(1) AS at, timestamp_ntz'2026-11-01 01:30:00' AS clock, date'2026-02-01' AS day, "
            "array(timestamp_micros(1)) AS times, named_struct('at', timestamp_micros(0)) AS doc"
        )
        deliver(dsn, frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    instant = datetime.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)
    with psycopg.connect(dsn) as connection:
        connection.execute("SET datestyle = 'ISO'; SET timezone = 'UTC'")
        (found,) = connection.execute("SELECT * FROM out").fetchall()
    clock, day = datetime.datetime(2026, 11, 1, 1, 30), datetime.date(2026, 2, 1)
    assert found == (instant, clock, day, [instant], {"at": "1970-01-01T00:00:00.000Z"})


def test_append_upsert_delete(spark: SparkSession, dsn: str) -> None:
    columns = "region string, id bigint, amount int, gone boolean"
    first = [("eu", 1, 10, False), ("us", 1, 20, None), ("eu", 2, 30, False)]
    deliver(dsn, spark.createDataFrame(first, columns), 1, ["region", "id"], delete="gone")
    ask(dsn, "ALTER TABLE out ADD COLUMN note text DEFAULT 'new'; UPDATE out SET note = 'seen'")
    second = [("eu", 1, None, True), ("us", 1, 21, False), ("eu", 3, 40, False), ("us", 9, 1, True)]
    deliver(dsn, spark.createDataFrame(second, columns), 2, ["region", "id"], delete="gone")
    assert ask(dsn, "SELECT * FROM out ORDER BY 1, 2") == [
        ("eu", 2, 30, "seen"),
        ("eu", 3, 40, "new"),
        ("us", 1, 21, "seen"),
    ]


def test_strange_columns(spark: SparkSession, dsn: str) -> None:
    names = ["a.b", "c`d", 'e"f', "Größe (m²)", "%s", "{}", "a b"]
    deliver(dsn, spark.createDataFrame([tuple(range(7))], [*names]), key="a.b")
    assert ask(dsn, "SELECT * FROM out") == [tuple(range(7))]


def test_the_driver_never_sees_the_rows(spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred thousand rows in one partition: what comes back is one small row for each task."""
    collected: list[Any] = []
    run = postgres_loading._run

    def listening(*arguments: Any) -> list[Any]:
        collected.extend(run(*arguments))
        return collected

    monkeypatch.setattr(postgres_loading, "_run", listening)
    frame = spark.range(0, 300_000, numPartitions=1).selectExpr("id", "repeat('x', 100) AS name")
    sink = opened(dsn, schema=frame.schema)
    descriptor = sink.stage(frame, at(1))
    assert [(row.row_count, row.refused) for row in collected] == [(300_000, None)]
    assert len(json.dumps(descriptor)) < 500
    sink.commit(descriptor, at(1))
    assert ask(dsn, "SELECT count(*), count(DISTINCT id), sum(length(name)) FROM out") == [
        (300_000, 300_000, 30_000_000)
    ]


def test_the_frame_is_evaluated_once(spark: SparkSession, dsn: str) -> None:
    counter = spark.sparkContext.accumulator(0)

    def counting(batches: Any) -> Any:
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    frame = spark.range(0, 100, numPartitions=4).mapInArrow(counting, "id long")
    deliver(dsn, frame, key="id")
    assert counter.value == 100


def test_a_refusal_in_the_middle_of_a_large_partition(spark: SparkSession, dsn: str) -> None:
    frame = spark.range(0, 100_000, numPartitions=2).selectExpr("id", "if(id = 30000, 'a\\0b', 'fine') AS name")
    sink = opened(dsn, schema=frame.schema)
    with pytest.raises(RowsRefused, match=r"column 'name'.*NUL"):
        sink.stage(frame, at(1))
    assert staging_tables(dsn) == []
    ask(dsn, "ALTER TABLE out ALTER COLUMN id TYPE smallint")
    with pytest.raises(RowsRefused, match=r"column 'id'.*out of range"):
        sink.stage(frame.where("id <> 30000"), at(1))
    assert staging_tables(dsn) == []
    sink.commit(sink.stage(frame.where("id < 9"), at(1)), at(1))
    assert ask(dsn, "SELECT count(*) FROM out") == [9]


def test_attempts_that_fail_are_repeated(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    from pyspark import TaskContext

    def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            yield batch
            if number == 3 and task.attemptNumber() < 2:
                (tmp_path / f"{task.partitionId()}-{task.attemptNumber()}").touch()
                raise RuntimeError("this attempt fails")

    small_batches = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    with configured(spark, small_batches):
        deliver(dsn, spark.range(0, 2000, numPartitions=2).mapInArrow(failing_at_first, "id long"), key="id")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    assert ask(dsn, "SELECT count(*), count(DISTINCT id) FROM out") == [(2000, 2000)]


# Where the password goes


def test_an_executor_that_cannot_connect(spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_loading, "for_executors", lambda dsn, _: dsn + "&port=1")
    frame = spark.range(3)
    with pytest.raises(Unavailable) as caught:
        deliver(dsn, frame)
    whole = "".join(traceback.format_exception(caught.value))
    assert "does not answer" in str(caught.value)
    assert PASSWORD not in whole
    assert staging_tables(dsn) == []


def test_what_the_environment_knows_reaches_the_executors(
    spark: SparkSession, dsn: str, pg_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of this session were started without these variables."""
    database = ask(dsn, "SELECT current_database()")[0]
    for name, value in {"HOST": str(pg_server.folder), "USER": "postgres", "PASSWORD": PASSWORD}.items():
        monkeypatch.setenv(f"PG{name}", value)
    deliver(f"dbname={database}", spark.range(3))
    assert ask(dsn, "SELECT count(*) FROM out") == [3]


def test_the_password_is_nowhere(spark: SparkSession, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    stop = observe(lambda *event: told.append(repr(event)))
    plans: list[str] = []
    try:
        sink = PostgresSink(dsn, "out", "id")
        frame = spark.range(3)
        sink.prepare(frame.schema, at(0))
        descriptor = sink.stage(frame, at(1))
        task = postgres_loading.CopyTask(dsn, "COPY x FROM STDIN", ["id"])
        plans.append(frame.mapInArrow(task, postgres_loading.OUTCOME)._jdf.queryExecution().toString())  # type: ignore[operator]
        sink.commit(descriptor, at(1))
        with pytest.raises(HoldfastError) as caught:
            sink.commit(descriptor | {"staged": "x"}, at(1))
    finally:
        stop()
    comments = ask(dsn, "SELECT coalesce(string_agg(description, ''), '') FROM pg_description WHERE objoid > 16384")
    shown = [json.dumps(descriptor), json.dumps(sink.describe()), repr(sink), repr(sink._target), str(caught.value)]
    for text in [*shown, *told, *plans, *comments, caplog.text, repr(ask(dsn, "SELECT * FROM holdfast_commits"))]:
        assert PASSWORD not in text
    assert re.search("MapInArrow", plans[0])


@pytest.mark.parametrize(
    "dsn", ["postgresql://me:{}@[host/x", "postgresql://me:{}%zz@host/x", "host=h passw0rd={}", "password={}' x"]
)
def test_a_dsn_that_cannot_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        PostgresSink(dsn.format(PASSWORD), "out")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
