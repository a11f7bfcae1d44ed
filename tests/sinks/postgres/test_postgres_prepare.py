"""What is found out before any data moves. No Spark session: a schema is enough."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from postgres_hands import SIMPLE, ask, at, opened, stage
from pyspark.sql.types import ArrayType, DayTimeIntervalType, DecimalType, StringType, StructType

from holdfast.errors import Invalid, Unavailable
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import RowsRefused
from servers.postgres import PASSWORD, PostgresServer


def test_the_target_is_made_from_the_schema(dsn: str) -> None:
    schema = (
        StructType()
        .add("id", "long")
        .add("part", "string")
        .add("amount", DecimalType(12, 3))
        .add("at", "timestamp")
        .add("tags", ArrayType(StringType()))
        .add("more", StructType().add("x", "integer"))
    )
    opened(dsn, "made", ["id", "part"], schema=schema)
    columns = ask(
        dsn,
        "SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'made'::regclass AND attnum > 0 ORDER BY attnum",
    )
    assert columns == [
        "id bigint",
        "part text",
        "amount numeric(12,3)",
        "at timestamp with time zone",
        "tags text[]",
        "more jsonb",
    ]
    assert ask(
        dsn, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'made'::regclass AND contype = 'p'"
    ) == ["PRIMARY KEY (id, part)"]
    opened(dsn, "made", ["part", "id"], schema=schema)


def test_the_flag_is_no_column_of_the_target(dsn: str) -> None:
    schema = StructType().add("id", "long").add("gone", "boolean")
    opened(dsn, "made", "id", delete="gone", schema=schema)
    assert ask(dsn, "SELECT attname FROM pg_attribute WHERE attrelid = 'made'::regclass AND attnum > 0") == ["id"]


def test_nothing_is_left_of_the_rehearsal(dsn: str) -> None:
    opened(dsn, "out", "id")
    assert ask(
        dsn, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1"
    ) == [
        "holdfast_commits",
        "out",
    ]
    assert ask(dsn, "SELECT count(*) FROM holdfast_commits") == [0]


REFUSED = {
    "unknown column": ("id bigint", {}, "no column 'name'", "ADD COLUMN"),
    "wrong type": ("id bigint, name integer", {}, "'name': integer does not take string", "cast"),
    "required": ("id bigint, name text, at date NOT NULL", {}, "'at'", "SET DEFAULT"),
    "generated": ("id bigint, name text GENERATED ALWAYS AS (id::text) STORED", {}, "'name' is a generated", "drop"),
    "identity": ("id bigint GENERATED ALWAYS AS IDENTITY, name text", {}, "'id' is an identity", "drop"),
    "no unique index": ("id bigint, name text", {"key": "id"}, "no unique index", "CREATE UNIQUE INDEX"),
    "wider index": ("id bigint, name text, UNIQUE (id, name)", {"key": "id"}, "no unique index", "CREATE UNIQUE INDEX"),
    "deferred": ("id bigint UNIQUE DEFERRABLE, name text", {"key": "id"}, "no unique index", "CREATE UNIQUE INDEX"),
    "key not in frame": ("id bigint, name text", {"key": "other"}, "'other' is not in the frame", ""),
    "flag not in frame": ("id bigint PRIMARY KEY", {"key": "id", "delete": "gone"}, "'gone'", ""),
    "flag is text": ("id bigint PRIMARY KEY", {"key": "id", "delete": "name"}, "string, not boolean", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_targets_that_do_not_fit(case: str, dsn: str) -> None:
    columns, options, words, advice = REFUSED[case]
    ask(dsn, f"CREATE TABLE out ({columns})")
    with pytest.raises(RowsRefused) as caught:
        opened(dsn, "out", **options)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert advice in (caught.value.next_step or "")
    assert ask(dsn, "SELECT to_regclass('holdfast_commits')") == [None]


def test_a_flag_that_is_a_column_of_the_target(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint PRIMARY KEY, gone boolean)")
    schema = StructType().add("id", "long").add("gone", "boolean")
    with pytest.raises(RowsRefused, match="column of the target as well"):
        opened(dsn, "out", "id", delete="gone", schema=schema)


def test_a_partial_index_settles_nothing(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (id bigint, name text)")
    ask(dsn, "CREATE UNIQUE INDEX ON out (id) WHERE id > 0")
    with pytest.raises(RowsRefused, match="no unique index"):
        opened(dsn, "out", "id")


def test_columns_with_defaults_may_be_missing(dsn: str) -> None:
    ask(dsn, "CREATE TABLE out (n serial PRIMARY KEY, id bigint, name text, at date NOT NULL DEFAULT '2020-01-01')")
    opened(dsn, "out")


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE VIEW out AS SELECT 1::bigint AS id, ''::text AS name",
        "CREATE UNLOGGED TABLE out (id bigint, name text)",
        "CREATE TABLE out (id bigint, name text) PARTITION BY RANGE (id); "
        "CREATE UNLOGGED TABLE part PARTITION OF out FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE out (id bigint, name text); CREATE RULE r AS ON INSERT TO out DO INSTEAD NOTHING",
    ],
    ids=["view", "unlogged", "unlogged partition", "rule"],
)
def test_targets_that_cannot_be_exactly_once(definition: str, dsn: str) -> None:
    ask(dsn, definition)
    with pytest.raises(Invalid) as caught:
        opened(dsn, "out")
    assert caught.value.next_step


FRAMES = {
    "no such type": (StructType().add("id", DayTimeIntervalType()), "interval"),
    "two of a name": (StructType().add("a", "long").add("a", "long"), "two columns"),
    "long name": (StructType().add("x" * 64, "long"), "63 bytes"),
    "our name": (StructType().add("holdfast_attempt", "long"), "reserved for staging"),
}


@pytest.mark.parametrize("case", FRAMES)
def test_frames_that_no_table_takes(case: str, dsn: str) -> None:
    schema, words = FRAMES[case]
    with pytest.raises(RowsRefused, match=words):
        opened(dsn, "out", schema=schema)
    assert ask(dsn, "SELECT to_regclass('out')") == [None]


def test_a_server_that_cannot_be_reached_is_named_without_the_password(pg_server: PostgresServer, dsn: str) -> None:
    for wrong in (
        f"postgresql://postgres:{PASSWORD}@/db?host={pg_server.folder}&port=1",
        dsn.replace("/test_", "/no_such_"),
        dsn.replace(PASSWORD, PASSWORD + "-wrong"),
    ):
        with pytest.raises(Unavailable) as caught:
            opened(wrong)
        assert str(pg_server.folder) in str(caught.value)
        assert PASSWORD not in str(caught.value)


def test_no_such_schema(dsn: str) -> None:
    with pytest.raises(Invalid, match="CREATE SCHEMA"):
        opened(dsn, "nowhere.out")


@pytest.mark.parametrize("table", ['sp ace."do.t"', 'quo"te', "ünï©ode", "SELECT", "x" * 63, "%s{}"])
def test_weird_names(table: str, dsn: str, by_hand: None) -> None:
    ask(dsn, 'CREATE SCHEMA "sp ace"')
    schema = StructType().add('k"ey', "long").add("the %s {value}", "string").add("sélect", "boolean")
    sink = opened(dsn, table, 'k"ey', schema=schema, delete="sélect")
    weird = at(1, pipeline="p'ipe\"; DROP TABLE x; --", sink="ß" * 100)
    sink.prepare(schema, weird)
    sink.commit(stage(sink, [(1, "one", False), (2, "two", None)], weird, schema), weird)
    two = at(2, pipeline=weird.pipeline, sink=weird.sink)
    sink.commit(stage(sink, [(1, None, True)], two, schema), two)
    with psycopg.connect(dsn) as connection:
        quoted = str(sink._target.table)
        assert connection.execute(f"SELECT * FROM {quoted}".encode()).fetchall() == [(2, "two")]
    assert sink.recover(two, None).committed == 2


def test_a_name_without_schema_is_found_as_usual(dsn: str, by_hand: None) -> None:
    ask(dsn, "CREATE SCHEMA a; CREATE SCHEMA b; CREATE TABLE b.out (id bigint, name text)")
    elsewhere = f"{dsn}&options=-c%20search_path%3Da,b"
    sink = opened(elsewhere, "out")
    sink.commit(stage(sink, [(1, "x")], at(1)), at(1))
    assert ask(dsn, "SELECT id FROM b.out") == [1]
    assert ask(dsn, "SELECT target FROM b.holdfast_commits") == ['"b"."out"']
    opened(elsewhere, "new")
    assert ask(dsn, "SELECT to_regclass('a.new')::text") == ["a.new"]


def test_the_same_sink_must_not_go_on_in_another_table(dsn: str, by_hand: None) -> None:
    sink = opened(dsn, "out")
    first = stage(sink, [(1, "x")], at(1))
    sink.commit(first, at(1))
    with pytest.raises(Invalid, match=r'"public"\."out"') as caught:
        opened(dsn, "other")
    assert "another name" in (caught.value.next_step or "")
    assert ask(dsn, "SELECT to_regclass('other')") == [None]
    other = PostgresSink(dsn, "other")
    other.prepare(SIMPLE, at(0, lineage=1))  # after a reset: its epochs cannot be mistaken for the old ones
    with pytest.raises(Invalid, match="staged for"):
        other.commit(first, at(1))
    with pytest.raises(Invalid, match=r'committed to "public"\."out"'):
        stage(other, [(2, "y")], at(1))
    forged = stage(other, [(2, "y")], at(2))
    sink.commit(stage(sink, [(3, "z")], at(2)), at(2))
    with pytest.raises(Invalid, match=r'committed to "public"\."out"'):
        other.commit(forged, at(2))
    assert ask(dsn, "SELECT id FROM out ORDER BY id") == [1, 3]
    assert ask(dsn, "SELECT id FROM other") == []


def test_two_pipelines_that_start_at_once(dsn: str) -> None:
    together = threading.Barrier(6)

    def start(number: int) -> None:
        together.wait()
        PostgresSink(dsn, "out", "id").prepare(SIMPLE, at(0, pipeline=f"p{number}"))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(start, range(6)))
    assert ask(dsn, "SELECT count(*) FROM out") == [0]


class TestPermissions:
    """A role of its own, which owns nothing."""

    @pytest.fixture
    def role(self, pg_server: PostgresServer, dsn: str) -> str:
        database = dsn.rsplit("/", 1)[0].rsplit("?")[0], dsn.split("@/")[1].split("?")[0]
        name = f"writer_{database[1]}"
        ask(
            dsn,
            f"CREATE ROLE {name} LOGIN PASSWORD 'writers-secret'; CREATE TABLE out (id bigint PRIMARY KEY, name text)",
        )
        self.name = name
        return pg_server.dsn(database[1], user=name, password="writers-secret")

    def test_what_is_missing_is_said(self, role: str, dsn: str) -> None:
        for grant in (
            f"GRANT CREATE ON SCHEMA public TO {self.name}",
            f"GRANT SELECT, INSERT ON out TO {self.name}",
            f"GRANT UPDATE ON out TO {self.name}",
        ):
            with pytest.raises(Invalid) as caught:
                opened(role, "out", "id")
            assert caught.value.code == "sink.denied"
            assert "GRANT" in (caught.value.next_step or "")
            ask(dsn, grant)
        opened(role, "out", "id")

    def test_commit_rows_of_another_role(self, role: str, dsn: str) -> None:
        opened(dsn, "out", "id")
        ask(dsn, f"GRANT CREATE ON SCHEMA public TO {self.name}; GRANT SELECT, INSERT, UPDATE ON out TO {self.name}")
        with pytest.raises(Invalid, match="holdfast_commits"):
            opened(role, "out", "id")
        ask(dsn, f"GRANT SELECT, INSERT, DELETE ON holdfast_commits TO {self.name}")
        opened(role, "out", "id")
