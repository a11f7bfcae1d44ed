"""Rows as keys and values: the same bytes from Spark as from Python, and every value back as it was."""

from __future__ import annotations

import datetime
import decimal
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import Invalid
from holdfast.index.rows import KEY, VALUE, decoded, encoded, key_bytes, problems
from holdfast.sinks.index import epoch_of, sequence_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime.datetime(2026, 1, 31, 23, 59, 59, 123456, tzinfo=datetime.UTC)
KEYS: list[tuple[str, Any]] = [
    ("string", "plain"),
    ("string", ""),
    ("string", 'quote " backslash \\ slash / NUL \x00 bell \x07 tab \t line \n last \x1f delete \x7f'),
    ("string", "Grüße 東京 \U0001f600 \u2028"),
    ("boolean", True),
    ("boolean", False),
    ("tinyint", -128),
    ("int", 17),
    ("bigint", -(2**63)),
    ("decimal(20,4)", decimal.Decimal("1234567890.1200")),
    ("decimal(38,0)", decimal.Decimal("1" * 30)),
    ("decimal(38,0)", decimal.Decimal("1E+3")),
    ("decimal(38,18)", decimal.Decimal("0.000000100000000000")),
    ("decimal(38,18)", decimal.Decimal("-0.000001000000000000")),
    ("decimal(20,8)", decimal.Decimal("0E-8")),
    ("decimal(10,2)", decimal.Decimal("-0.00")),
    ("date", datetime.date(2026, 2, 28)),
    ("timestamp", AT),
    ("timestamp", AT.replace(microsecond=0)),
    ("timestamp_ntz", AT.replace(tzinfo=None)),
]


@pytest.mark.parametrize(("kind", "value"), KEYS, ids=[f"{kind}-{place}" for place, (kind, _) in enumerate(KEYS)])
def test_a_key_is_the_same_from_spark_and_from_python(spark: SparkSession, kind: str, value: Any) -> None:
    frame = spark.createDataFrame([(value, 3)], f"`the key` {kind}, n int")
    found = encoded(frame, ["the key", "n"], None).first()
    assert found is not None
    assert bytes(found[KEY]) == key_bytes(["the key", "n"], {"the key": value, "n": 3})
    assert bytes(found[KEY]).startswith(key_bytes(["the key", "n"], {"the key": value}))


def test_every_value_comes_back_as_it_was(spark: SparkSession) -> None:
    schema = (
        "k int, s string, b boolean, i bigint, f float, d double, x decimal(30,10), day date, at timestamp, "
        "local timestamp_ntz, raw binary, list array<double>, names map<string,bigint>, inner struct<a:int,b:string>"
    )
    rows = [
        (1, "a\x00\"", True, 2**62, 1.1, 0.1 + 0.2, decimal.Decimal("1.5"), AT.date(), AT, AT.replace(tzinfo=None),
         bytes(range(256)), [1.0, None, 5e-324], {"x": 1, "y": None}, (1, None)),
        (2, "", False, -1, float("inf"), float("-inf"), None, None, AT.replace(microsecond=1), None, b"", [], {}, None),
        (3, *[None] * 13),
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, schema)
    back = decoded(encoded(frame, ["k"], None), frame.schema)
    assert back.schema.simpleString() == frame.schema.simpleString()
    assert sorted(back.collect()) == sorted(frame.collect())


def test_a_flag_deletes_and_is_not_kept(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, True), (2, False), (3, None)], "k int, gone boolean")
    found = {bytes(row[KEY]): row[VALUE] and bytes(row[VALUE]) for row in encoded(frame, ["k"], "gone").collect()}
    assert found == {b'{"k":1}': None, b'{"k":2}': b'{"k":2}', b'{"k":3}': b'{"k":3}'}


@pytest.mark.parametrize(
    ("schema", "key", "said"),
    [
        ("k int", ["other"], "no key column 'other'"),
        ("k double", ["k"], "cannot be a key"),
        ("k array<int>", ["k"], "cannot be a key"),
        ("k int, v map<int,int>", ["k"], "not kept exactly"),
        ("k int, v interval month", ["k"], "not kept exactly"),
        ("k int, v void", ["k"], "not kept exactly"),
        ("k int, v struct<a:array<interval month>>", ["k"], "not kept exactly"),
    ],
)
def test_columns_that_are_refused(spark: SparkSession, schema: str, key: list[str], said: str) -> None:
    found = problems(spark.createDataFrame([], schema).schema, key, None)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    "values", [{}, {"b": 1}, {"a": 1, "c": 2}, {"a": 1.5}, {"a": None}, {"a": decimal.Decimal("NaN")}]
)
def test_keys_that_are_none(values: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        key_bytes(["a", "b"], values)
    assert refused.value.code == "index.key"


def test_sequences_rise_with_epochs_and_lineages() -> None:
    deliveries = [(0, 1), (0, 2), (0, 2**40 - 1), (1, 0), (1, 1), (7, 5), (2**24 - 1, 2**40 - 1)]
    sequences = [sequence_of(lineage, epoch) for lineage, epoch in deliveries]
    assert sequences == sorted(sequences)
    assert [epoch_of(sequence) for sequence in sequences] == deliveries
    assert sequence_of(0, 17) == 17
    for lineage, epoch in ((0, 2**40), (2**24, 0), (-1, 1)):
        with pytest.raises(Invalid):
            sequence_of(lineage, epoch)
