"""A row that has a reason to be refused is refused when it is staged, and a row that is taken has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from postgres_hands import ask, at, opened

from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = [
    ("text", "'a' || char(0) || 'b'", "NUL"),
    ("text", "'a' || char(0) COLLATE UNICODE_CI", "NUL"),
    ("text", "cast(X'41FF' AS string)", "UTF-8"),
    ("varchar(3)", "'äöüß'", "too long for character varying(3)"),
    ("char(3)", "'abcd '", "too long for character(3)"),
    ("uuid", "'123e4567-e89b-12d3-a456-42661417400'", "not a uuid"),
    ("uuid", "'{123e4567-e89b-12d3-a456-426614174000'", "not a uuid"),
    ("uuid", "'123e4567-e89b-12d3-a456-426614174000\\n'", "not a uuid"),
    ("integer", "2147483648L", "out of range for integer"),
    ("smallint", "-32769", "out of range for smallint"),
    ("numeric(4,2)", "100.00BD", "out of range for numeric(4,2)"),
    ("numeric(4,2)", "-100BD", "out of range for numeric(4,2)"),
    ("numeric(4,2)", "-9223372036854775808L", "out of range for numeric(4,2)"),
    ("numeric(38,1)", "cast('1e37' AS decimal(38,0))", "out of range for numeric(38,1)"),
    ("date", "date'0000-12-31'", "before the year 1"),
    ("timestamptz", "timestamp'0000-12-31 23:59:59.999999 UTC'", "before the year 1"),
    ("timestamp", "timestamp_ntz'0000-12-31 23:59:59'", "before the year 1"),
    ("smallint[]", "array(1, 40000)", "has an element that is out of range for smallint"),
    ("varchar(2)[]", "array(null, 'abc')", "has an element that is too long"),
    ("smallint[]", "array(array(1, 2), array(3, 40000))", "has an element that has an element that is out of range"),
    ("text NOT NULL", "cast(null AS string)", "NOT NULL"),
]
TAKEN = [
    ("varchar(3)", "'äöü  '"),
    ("char(3)", "'ab   '"),
    ("uuid", "'{123E4567e89b-12d3-a456-426614174000}'"),
    ("integer", "2147483647L"),
    ("smallint", "-32768"),
    ("numeric(4,2)", "-99.99BD"),
    ("numeric(4,2)", "99L"),
    ("numeric(38,1)", "cast('9999999999999999999999999999999999999' AS decimal(38,0))"),
    ("date", "date'0001-01-01'"),
    ("timestamptz", "timestamp'0001-01-01 00:00:00 UTC'"),
    ("timestamp", "timestamp_ntz'0001-01-01 00:00:00'"),
    ("smallint[]", "array(1, null)"),
    ("smallint[]", "cast(null AS array<int>)"),
    ("text", "cast(null AS string)"),
]


def test_a_row_that_the_target_refuses_has_a_reason(spark: SparkSession, dsn: str) -> None:
    for column, value, words in REFUSED:
        frame = spark.sql(f"SELECT {value} AS c")
        ask(dsn, "DROP TABLE IF EXISTS out")
        ask(dsn, f"CREATE TABLE out (c {column})")
        sink = opened(dsn, schema=frame.schema)
        reason = sink.refused(frame)
        assert reason is not None, column
        (found,) = frame.select(reason).collect()
        assert "column 'c'" in (found[0] or ""), (column, value)
        assert words in found[0]
        with pytest.raises(RowsRefused):
            sink.stage(frame, at(1))


def test_no_reasons(spark: SparkSession, dsn: str) -> None:
    columns = ", ".join(f"c{number} {column}" for number, (column, _) in enumerate(TAKEN))
    ask(dsn, f"CREATE TABLE out ({columns})")
    frame = spark.sql("SELECT " + ", ".join(f"{value} AS c{number}" for number, (_, value) in enumerate(TAKEN)))
    sink = opened(dsn, schema=frame.schema)
    reason = sink.refused(frame)
    assert reason is not None
    assert [row[0] for row in frame.select(reason).collect()] == [None]
    sink.commit(sink.stage(frame, at(1)), at(1))
    assert ask(dsn, "SELECT count(*) FROM out") == [1]


def test_a_table_that_refuses_no_row_by_itself(spark: SparkSession, dsn: str) -> None:
    frame = spark.sql("SELECT 1L AS id, 1.5D AS amount")
    assert opened(dsn, schema=frame.schema).refused(frame) is None


def test_rows_that_delete_need_their_key_only(spark: SparkSession, dsn: str) -> None:
    ask(dsn, 'CREATE TABLE out ("the.id" bigint PRIMARY KEY, "na`me" text NOT NULL)')
    frame = spark.sql(
        "SELECT * FROM VALUES (1L, 'a', false), (2L, null, true), (3L, null, null), (null, 'x', true) "
        "AS t(`the.id`, `na``me`, gone)"
    )
    sink = opened(dsn, schema=frame.schema, key="the.id", delete="gone")
    reason = sink.refused(frame)
    assert reason is not None
    found = {row[0]: row[1] for row in frame.select("`the.id`", reason).collect()}
    assert found == {
        1: None,
        2: None,
        3: "column 'na`me', which is NOT NULL, is null",
        None: "key column 'the.id' is null",
    }
    sink.commit(sink.stage(frame.where(reason.isNull()), at(1)), at(1))
    assert ask(dsn, "SELECT count(*) FROM out") == [1]
