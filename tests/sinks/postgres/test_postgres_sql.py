"""The statements of a merge, as text."""

from __future__ import annotations

from holdfast.sinks.postgres.sql import StagedRows, merge, ranges
from holdfast.sinks.postgres.table import TableName


def test_few_ranges() -> None:
    assert ranges([]) == []
    assert ranges([7, 5, 6, 9, 11, 10]) == [(5, 7), (9, 11)]


def test_merge_without_key_only_inserts() -> None:
    staged = StagedRows(TableName("s", "stage"), TableName("s", "t"), ("a", "b"), (), False, [(1, 2), (5, 5)])
    (insert,) = merge(staged)
    assert insert.as_string(None) == (
        'INSERT INTO "s"."t" ("a", "b") SELECT "a", "b" FROM "s"."stage" s '
        "WHERE s.\"holdfast_attempt\" <@ '{[1,2],[5,5]}'::int8multirange"
    )


def test_merge_with_nothing_but_the_key() -> None:
    (insert,) = merge(StagedRows(TableName("s", "stage"), TableName("s", "t"), ("a",), ("a",), False, []))
    assert insert.as_string(None).endswith('ORDER BY "a" ON CONFLICT ("a") DO NOTHING')
