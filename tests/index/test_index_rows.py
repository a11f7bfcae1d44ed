"""Rows as keys and values: the same bytes from Spark as from Python, and every value back as it was."""

from __future__ import annotations

import datetime
import decimal
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import Invalid
from holdfast.index.rows import KEY, VALUE, columns_of, decoded, encoded, key_bytes, problems, row_reader

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


def test_numbers_are_read_with_the_type_of_their_column(spark: SparkSession) -> None:
    """A float has 17 digits, a decimal up to 38; JSON has no number for an infinity."""
    schema = (
        "k int, x decimal(38,20), n decimal(38,0), d double, f float, list array<decimal(20,2)>, day date, "
        "names map<string,struct<a:decimal(4,2),b:double>>, i bigint, at timestamp, raw binary, b boolean, gone boolean"
    )
    row = (1, Decimal("123456789012345678.12345678901234567890"), Decimal("1" * 38), 0.1 + 0.2, float("-inf"),
           [Decimal("0.10"), None], AT.date(), {"x": (Decimal("1.50"), 2.0), "y": None}, 2**62, AT, b"\xff", True,
           False)  # fmt: skip
    frame = spark.createDataFrame([row, (2, *[None] * 12)], schema)
    read = row_reader(columns_of(frame.schema, "gone"))
    found = {kept["k"]: kept for kept in (read(bytes(one[VALUE])) for one in encoded(frame, ["k"], "gone").collect())}
    assert found[1] == {
        "k": 1, "x": row[1], "n": row[2], "d": row[3], "f": row[4], "list": row[5], "day": "2026-01-31",
        "names": {"x": {"a": Decimal("1.50"), "b": 2.0}, "y": None}, "i": 2**62, "at": "2026-01-31T23:59:59.123456Z",
        "raw": "/w==", "b": True,
    }  # fmt: skip
    assert {name: type(value) for name, value in found[1].items() if name in "xndf"} == {
        "x": Decimal, "n": Decimal, "d": float, "f": float,
    }  # fmt: skip
    assert str(found[1]["list"][0]) == "0.10"
    assert found[2] == {"k": 2, **dict.fromkeys([name for name in found[1] if name != "k"])}


def test_numbers_of_a_document_with_columns() -> None:
    inner = {"type": "struct", "fields": [{"name": "a", "type": "decimal(4,2)"}, {"name": "b", "type": "double"}]}
    kinds = {
        "x": "decimal(38,20)", "n": "decimal(38,0)", "d": "double", "f": "float", "i": "long", "none": "decimal(9,2)",
        "list": {"type": "array", "elementType": "decimal(9,2)"}, "map": {"type": "map", "valueType": inner},
    }  # fmt: skip
    columns = {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    value = (
        b'{"x":123456789012345678.12345678901234567890,"n":11111111111111111111111111111111111111,"d":0.1,"f":"-Infinity",'
        b'"i":7,"none":null,"list":[0.10,null],"map":{"p":{"a":1.50,"b":2.0},"q":null}}'
    )
    found = row_reader(json.dumps(columns))(value)
    assert found == {
        "x": Decimal("123456789012345678.12345678901234567890"), "n": Decimal("1" * 38), "d": 0.1, "f": float("-inf"),
        "i": 7, "none": None, "list": [Decimal("0.10"), None],
        "map": {"p": {"a": Decimal("1.50"), "b": 2.0}, "q": None},
    }  # fmt: skip
    assert [type(found[name]) for name in "xndfi"] == [Decimal, Decimal, float, float, int]


STRUCT = {"type": "struct", "fields": [{"name": "a", "type": "double"}]}


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        ("double", '{"v":1.5,"old":2,"text":"x"}', {"v": 1.5, "old": 2, "text": "x"}),
        ("double", '{"old":2.50}', {"v": None, "old": Decimal("2.50")}),
        (STRUCT, '{"v":{"a":1.5,"gone":[1,null]}}', {"v": {"a": 1.5, "gone": [1, None]}}),
        ("double", '{"v":"a word"}', {"v": "a word"}),
        ("decimal(9,2)", '{"v":"a word"}', {"v": "a word"}),
        ("decimal(9,2)", '{"v":{"a":1}}', {"v": {"a": 1}}),
        ("double", '{"v":"1.5"}', {"v": "1.5"}),
        ("double", '{"v":true}', {"v": True}),
        ("double", '{"v":"NaN2"}', {"v": "NaN2"}),
        ({"type": "array", "elementType": "double"}, '{"v":7}', {"v": 7}),
        ({"type": "array", "elementType": "string"}, '{"v":"a word"}', {"v": "a word"}),
        ({"type": "map", "valueType": "double"}, '{"v":[7]}', {"v": [7]}),
        (STRUCT, '{"v":"a word"}', {"v": "a word"}),
    ],
)
def test_rows_of_older_columns_are_read_as_they_were(kind: object, document: str, expected: dict[str, object]) -> None:
    """A query that lost a column, or gave one another type, leaves the rows that it does not touch as they are."""
    columns = {"type": "struct", "fields": [{"name": "v", "type": kind}]}
    found = row_reader(json.dumps(columns))(document.encode())
    assert found == expected
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]


def test_rows_whose_columns_are_not_known() -> None:
    assert row_reader(None)(b'{"x":1.5,"n":3,"s":"NaN"}') == {"x": 1.5, "n": 3, "s": "NaN"}


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
        ("k int, v map<int,int>", ["k"], "cannot be stored exactly"),
        ("k int, v interval month", ["k"], "cannot be stored exactly"),
        ("k int, v void", ["k"], "cannot be stored exactly"),
        ("k int, v struct<a:array<interval month>>", ["k"], "cannot be stored exactly"),
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
