"""Rows as COPY reads them."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.sinks.postgres.copy_task import SLICE, ValueRefused, lines, slices


def copied(values: list[Any], kind: pa.DataType) -> list[str]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["c"])
    rows = lines(batch, ["c"], 7).decode().split("\n")
    assert rows.pop() == ""
    assert all(row.endswith("\t7") for row in rows)
    return [row.removesuffix("\t7") for row in rows]


def test_lines_as_copy_reads_them() -> None:
    assert copied([1, None, -5], pa.int64()) == ["1", r"\N", "-5"]
    assert copied(["a\tb\nc\rd\\e", r"\N", "", None], pa.string()) == [r"a\tb\nc\rd\\e", r"\\N", "", r"\N"]
    assert copied([b"\x00\\", None], pa.binary()) == [r"\\x005c", r"\N"]
    assert copied([decimal.Decimal("-0.10"), decimal.Decimal(10) ** 30], pa.decimal128(38, 2))[0] == "-0.10"
    assert copied([float("nan"), float("inf"), 0.1], pa.float64()) == ["nan", "inf", "0.1"]
    assert copied([datetime.date(1, 1, 1)], pa.date32()) == ["0001-01-01"]
    assert copied([True, False], pa.bool_()) == ["true", "false"]


def test_instants_do_not_depend_on_their_label() -> None:
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        assert copied([0], pa.timestamp("us", tz=zone)) == ["1970-01-01 00:00:00.000000Z"]
    assert copied([0], pa.timestamp("us")) == ["1970-01-01 00:00:00.000000"]


def test_arrays_as_postgres_reads_them() -> None:
    assert copied([[1, None], None, []], pa.list_(pa.int32())) == ['{"1",NULL}', r"\N", "{}"]
    assert copied([["NULL", 'q"', "b\\", ""]], pa.list_(pa.string())) == [r'{"NULL","q\\"","b\\\\",""}']
    assert copied([[[1], [2]], [[3]]], pa.list_(pa.list_(pa.int64()))) == ['{{"1"},{"2"}}', '{{"3"}}']
    sliced = pa.array([["x"], None, ["y", "z"], ["w"]]).slice(1, 2)
    batch = pa.RecordBatch.from_arrays([sliced], names=["c"])
    assert lines(batch, ["c"], 7) == b'\\N\t7\n{"y","z"}\t7\n'


def test_nul_names_the_column() -> None:
    for values, kind in (["a\0b"], pa.string()), ([["fine"], ["\0"]], pa.list_(pa.string())):
        with pytest.raises(ValueRefused) as caught:
            copied(values, kind)
        assert caught.value.refusal.column == "c"
        assert "NUL" in caught.value.refusal.why


def test_long_rows_go_in_small_pieces() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["x" * (SLICE // 2)] * 5 + ["y"])], names=["c"])
    pieces = list(slices(batch))
    assert len(pieces) > 2
    assert pa.Table.from_batches(pieces).to_pydict() == pa.Table.from_batches([batch]).to_pydict()
    assert list(slices(batch.slice(0, 0))) == []
