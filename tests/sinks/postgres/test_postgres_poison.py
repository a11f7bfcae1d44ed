"""Rows that the target would refuse are found when they are staged; nothing of them is ever visible."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from postgres_hands import SIMPLE, HandFrame, ask, at, opened, stage, staging_tables
from pyspark.sql.types import DecimalType, StructType

from holdfast.sinks.postgres.compatibility import needs_trial
from holdfast.sinks.postgres.connection import connected
from holdfast.sinks.postgres.table import TableName, read_table
from holdfast.sinks.postgres.target import RowKey
from holdfast.sinks.sink import RowsRefused

pytestmark = pytest.mark.usefixtures("by_hand")

AMOUNT = StructType().add("id", "long").add("amount", DecimalType(10, 2))
DELETING = StructType().add("id", "long").add("name", "string").add("gone", "boolean")
DATED = StructType().add("id", "long").add("day", "date")
LONG = random.Random(1).randbytes(6000).hex()  # too long for an index, however well it packs


def refuse(dsn: str, rows: Sequence[Sequence[Any]], schema: StructType = SIMPLE, **options: Any) -> str:
    """Stage rows that must be refused; what is said of it."""
    sink = opened(dsn, schema=schema, **options)
    before = ask(dsn, "SELECT count(*) FROM out")
    with pytest.raises(RowsRefused) as caught:
        stage(sink, rows, at(1), schema)
    assert staging_tables(dsn) == []
    assert ask(dsn, "SELECT count(*) FROM out") == before
    assert ask(dsn, "SELECT count(*) FROM holdfast_commits") == [0]
    assert caught.value.unchanged
    assert "Failing row" not in str(caught.value)
    assert caught.value.__cause__ is None  # nor in a traceback
    return str(caught.value)


def test_nul_in_text(dsn: str) -> None:
    said = refuse(dsn, [(1, "fine"), (2, "a\0b")])
    assert "column 'name'" in said
    assert "NUL" in said


def test_same_key_twice(dsn: str) -> None:
    said = refuse(dsn, [(1, "a"), (2, "b"), (2, "c")], key="id")
    assert "2 rows have the same key, id = 2" in said


def test_delete_and_insert_of_one_key(dsn: str) -> None:
    said = refuse(dsn, [(1, "a", True), (1, "b", False)], DELETING, key="id", delete="gone")
    assert "same key, id = 1" in said


def test_keys_that_only_the_column_finds_equal(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint, name char(5) PRIMARY KEY)")
    assert "same key" in refuse(dsn, [(1, "key"), (2, "key  ")], key="name")


def test_staged_keys_compare_as_the_target_does(dsn: str) -> None:
    ask(dsn, 'CREATE TABLE out (id bigint, name text COLLATE "POSIX")')
    stage(opened(dsn), [(1, "x")], at(1))
    collated = (
        "SELECT attcollation::regcollation::text FROM pg_attribute WHERE attname = 'name' AND attrelid = '{}'::regclass"
    )
    (staged,) = staging_tables(dsn)
    assert ask(dsn, collated.format(staged)) == ask(dsn, collated.format("out")) == ['"POSIX"']


def test_null_key(dsn: str) -> None:
    assert "In 1 of 2 rows a key column is null" in refuse(dsn, [(1, "a"), (None, "b")], key="id")


def test_null_key_of_a_delete(dsn: str) -> None:
    assert "key column is null" in refuse(dsn, [(None, "b", True)], DELETING, key="id", delete="gone")


def test_not_null(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint PRIMARY KEY, name text NOT NULL)")
    said = refuse(dsn, [(1, "a"), (2, None), (3, None)], key="id")
    assert "In 2 of 3 rows column 'name', which is NOT NULL, is null" in said
    assert "id = " in said


def test_a_check_constraint_is_named_with_the_keys_that_break_it(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint PRIMARY KEY, name text CONSTRAINT short CHECK (length(name) < 5))")
    said = refuse(dsn, [(1, "a"), (2, "much too long"), (3, None)], key="id")
    assert "constraint 'short' (length(name) < 5)" in said
    assert "In 1 of 3 rows" in said
    assert "id = 2" in said
    assert "much too long" not in said


def test_check_without_key_shows_what_it_checks(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint CHECK (id % 2 = 0), name text)")  # the percent sign is not a placeholder
    said = refuse(dsn, [(2, "private"), (3, "private")])
    assert "id = 3" in said
    assert "private" not in said


def test_examples_are_short(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint, name text CHECK (length(name) < 5))")
    assert len(refuse(dsn, [(1, "x" * 5000)])) < 600


def test_check_that_fails_itself(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint CHECK (10 / id > 0), name text)")
    assert "division by zero" in refuse(dsn, [(0, "a")])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("name varchar(3)", "long", "too long"),
        ("name uuid", "no-uuid", "uuid"),
        ("name jsonb", "{", "json"),
        ("name jsonb", '{"a": "\\u0000"}', "column 'name'"),
        ("name inet", "300.1.1.1", "inet"),
        ("name mood", "sad", "mood"),
    ],
)
def test_values_that_the_type_refuses(column: str, value: str, words: str, dsn: str) -> None:
    ask(dsn, "CREATE TYPE mood AS ENUM ('fine')")
    ask(dsn, f"CREATE TABLE out (id bigint, {column})")
    said = refuse(dsn, [(1, value)])
    assert "column 'name'" in said
    assert words in said


def test_numbers_that_do_not_fit(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id integer, amount numeric(4,2))")
    assert "column 'id'" in refuse(dsn, [(2**31, Decimal(1))], AMOUNT)
    assert "amount" in refuse(dsn, [(1, Decimal("100.00"))], AMOUNT)


def test_a_date_before_year_one(dsn: str) -> None:
    sink = opened(dsn, schema=DATED)
    frame = HandFrame(DATED, [])
    day = pa.array([-800_000], pa.int32()).cast(pa.date32())
    frame.batch = pa.RecordBatch.from_arrays([pa.array([1]), day], names=["id", "day"])
    with pytest.raises(RowsRefused, match="column 'day'"):
        sink.stage(frame, at(1))  # type: ignore[arg-type]


TRIED = {
    "foreign key": (
        "CREATE TABLE customers (id bigint PRIMARY KEY); CREATE TABLE out (id bigint REFERENCES customers, name text)",
        "Key (id)=(7) is not present",
    ),
    "deferred foreign key": (
        "CREATE TABLE customers (id bigint PRIMARY KEY); "
        "CREATE TABLE out (id bigint REFERENCES customers DEFERRABLE INITIALLY DEFERRED, name text)",
        "Key (id)=(7) is not present",
    ),
    "unique": ("CREATE TABLE out (id bigint UNIQUE, name text); INSERT INTO out VALUES (7)", "Key (id)=(7) already"),
    "unique expression": (
        "CREATE TABLE out (id bigint, name text); CREATE UNIQUE INDEX ON out (lower(name)); "
        "INSERT INTO out VALUES (1, 'ROW')",
        "already exists",
    ),
    "exclusion": (
        "CREATE TABLE out (id bigint, name text, EXCLUDE USING btree (id WITH =)); INSERT INTO out VALUES (7)",
        "conflicting key",
    ),
    "trigger": (
        "CREATE TABLE out (id bigint, name text); "
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not on my watch'; END$$; "
        "CREATE TRIGGER t BEFORE INSERT ON out FOR EACH ROW EXECUTE FUNCTION no()",
        "not on my watch",
    ),
    "generated": (
        "CREATE TABLE out (id bigint, name text, n int GENERATED ALWAYS AS (1 / (id - 7)) STORED)",
        "division by zero",
    ),
    "partition": (
        "CREATE TABLE out (id bigint, name text) PARTITION BY RANGE (id); "
        "CREATE TABLE part PARTITION OF out FOR VALUES FROM (0) TO (5)",
        "no partition",
    ),
    "domain": ("CREATE DOMAIN small AS bigint CHECK (VALUE < 5); CREATE TABLE out (id small, name text)", "small"),
    "domain over a domain": (
        "CREATE DOMAIN d1 AS varchar(3); CREATE DOMAIN d2 AS d1 NOT NULL; "
        "CREATE TABLE out (id bigint, name d2 DEFAULT '')",
        "null",
    ),
    "check of another column": (
        "CREATE TABLE out (id bigint, name text, top bigint DEFAULT 5, CONSTRAINT below CHECK (id < top))",
        "below",
    ),
    "row security": (
        "CREATE TABLE out (id bigint, name text); CREATE POLICY p ON out USING (true) WITH CHECK (id < 5); "
        "ALTER TABLE out ENABLE ROW LEVEL SECURITY; ALTER TABLE out FORCE ROW LEVEL SECURITY",
        "row-level security",
    ),
}


@pytest.mark.parametrize("case", TRIED)
def test_what_only_shows_when_rows_go_in(case: str, dsn: str) -> None:
    definition, words = TRIED[case]
    ask(dsn, definition)
    if case == "row security":  # a superuser is above it
        owner = "owner_" + ask(dsn, "SELECT current_database()")[0]
        ask(dsn, f"CREATE ROLE {owner} LOGIN PASSWORD 'x'; GRANT CREATE ON SCHEMA public TO {owner}")
        ask(dsn, f"ALTER TABLE out OWNER TO {owner}")
        dsn = dsn.replace("postgres:not-to-be-shown", f"{owner}:x")
    row = (7, None if case == "domain over a domain" else "row")
    assert words in refuse(dsn, [row])


def test_a_delete_that_others_refer_to(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint PRIMARY KEY, name text)")
    ask(dsn, "CREATE TABLE lines (of bigint REFERENCES out); INSERT INTO out VALUES (7); INSERT INTO lines VALUES (7)")
    assert "still referenced" in refuse(dsn, [(7, None, True)], DELETING, key="id", delete="gone")


def test_a_second_unique_index_of_an_upsert(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint PRIMARY KEY, name text UNIQUE); INSERT INTO out VALUES (1, 'a')")
    assert "Key (name)=(a) already" in refuse(dsn, [(2, "a")], key="id")


def test_a_key_too_long_for_its_index(dsn: str) -> None:
    assert "index row" in refuse(dsn, [(1, LONG)], key="name")


def test_a_value_too_long_for_another_index(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint, name text); CREATE INDEX ON out (name)")
    assert "index row" in refuse(dsn, [(1, LONG)])


def test_a_trial_leaves_no_trace(dsn: str) -> None:
    ask(dsn, "CREATE TABLE customers (id bigint PRIMARY KEY); INSERT INTO customers VALUES (7)")
    ask(dsn, "CREATE TABLE out (id bigint PRIMARY KEY REFERENCES customers, name text)")
    sink = opened(dsn, key="id")
    descriptor = stage(sink, [(7, "x")], at(1))
    assert ask(dsn, "SELECT count(*) FROM out") == [0]
    sink.commit(descriptor, at(1))
    assert ask(dsn, "SELECT * FROM out") == [(7, "x")]


def test_a_row_that_deletes_needs_only_its_key(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint PRIMARY KEY, name text NOT NULL CHECK (name <> 'bad'))")
    ask(dsn, "INSERT INTO out VALUES (1, 'a'), (2, 'b')")
    sink = opened(dsn, key="id", delete="gone", schema=DELETING)
    rows = [(1, None, True), (2, "new", None), (3, "c", False), (4, "bad", True)]
    sink.commit(stage(sink, rows, at(1), DELETING), at(1))
    assert ask(dsn, "SELECT * FROM out ORDER BY id") == [(2, "new"), (3, "c")]


def test_common_targets_are_not_tried(dsn: str) -> None:
    """A trial costs as much as the commit: only where it can find something."""
    ask(
        dsn,
        "CREATE TABLE plain (n serial PRIMARY KEY, id bigint, name text NOT NULL CHECK (name <> ''), "
        "at date DEFAULT now())",
    )
    ask(dsn, "CREATE TABLE keyed (id bigint PRIMARY KEY, name text); CREATE INDEX ON keyed (name)")
    ask(dsn, "CREATE TABLE twice (id bigint PRIMARY KEY, name text UNIQUE)")
    with connected(dsn) as connection:
        plain, keyed, twice = (read_table(connection, TableName(None, name)) for name in ("plain", "keyed", "twice"))
    assert plain is not None
    assert keyed is not None
    assert twice is not None
    written = {"id", "name"}
    assert needs_trial(plain, written, RowKey()) == []
    assert needs_trial(keyed, written, RowKey(("id",))) == []
    assert needs_trial(keyed, written, RowKey()) == ["it has unique indexes besides the key"]
    assert needs_trial(twice, written, RowKey(("id",))) == ["it has unique indexes besides the key"]


def test_constraints_that_are_not_enforced(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint CHECK (id > 0) NOT ENFORCED, name text)")
    sink = opened(dsn)
    sink.commit(stage(sink, [(-1, "x")], at(1)), at(1))
    assert ask(dsn, "SELECT id FROM out") == [-1]


def test_dates_are_fine(dsn: str) -> None:
    sink = opened(dsn, schema=DATED)
    sink.commit(stage(sink, [(1, datetime.date(9999, 12, 31))], at(1), DATED), at(1))
    assert ask(dsn, "SELECT day FROM out") == [datetime.date(9999, 12, 31)]
