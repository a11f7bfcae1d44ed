"""Names of tables, and of those that rows are staged in."""

from __future__ import annotations

import pytest
from postgres_hands import at

from holdfast.errors import Invalid
from holdfast.sinks.postgres.table import is_staged_name, parse_table, staged_name


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", None, "orders"),
        ("Sales.Orders", "Sales", "Orders"),
        ('"a.b"."c""d"', "a.b", 'c"d'),
        ('sales."x.y"', "sales", "x.y"),
        ('wei"rd näme', None, 'wei"rd näme'),
        ("é" * 31, None, "é" * 31),
    ],
)
def test_table_names(text: str, schema: str | None, name: str) -> None:
    table = parse_table(text)
    assert (table.schema, table.name) == (schema, name)
    assert parse_table(str(table)) == table


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"a', '""', '"a"b', "a\0", "é" * 32, "x" * 64])
def test_what_is_no_table_name(text: str) -> None:
    with pytest.raises(Invalid):
        parse_table(text)


def test_staging_names_fit_and_differ() -> None:
    long = at(1, pipeline="p" * 300, sink="ß" * 300)
    names = {staged_name(d, token) for d in (long, at(1), at(2), at(1, generation=2)) for token in ("a", "b")}
    assert len(names) == 8
    assert all(len(name.encode()) <= 63 and is_staged_name(name) for name in names)
    for name in ("orders", "holdfast_commits", "holdfast_staged_", "holdfast_staged_x'; DROP", 'holdfast_staged_"'):
        assert not is_staged_name(name)
