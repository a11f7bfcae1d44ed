"""Plans as text."""

from __future__ import annotations

from holdfast.operations.plan import Table


def test_a_table_prints_as_columns():
    table = Table(("REMOVE", "SIZE"), [("a", "10 B"), ("longer", "5 B")], right=(1,))
    assert str(table).splitlines() == ["REMOVE  SIZE", "a       10 B", "longer   5 B"]
