"""What is PostgreSQL's own: tables of read models in a database that several stores share."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from holdfast.errors import Fenced, Invalid
from holdfast.projections import (
    Event,
    OnError,
    Projection,
    ProjectionRunner,
    ProjectionWorker,
    View,
    open_projections,
)
from holdfast.testing.conformance.projections.subject import paid
from holdfast.testing.conformance.projections.views import Tables, rows_of
from servers.postgres import PostgresServer


@pytest.fixture
def dsn(pg_server: PostgresServer) -> str:
    return pg_server.new_database()


def tables_in(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
    return [name for (name,) in rows]


def test_stores_of_one_database_have_tables_of_their_own(dsn: str) -> None:
    with open_projections(f"{dsn}&store=one") as one, open_projections(f"{dsn}&store=other") as other:
        for store, cents in ((one, 1), (other, 20)):
            store.append("a", [paid(cents)])
            ProjectionRunner(store).catch_up_persistent(Tables(store))
        assert (rows_of(one), rows_of(other)) == ({"a": (1, 1)}, {"a": (20, 1)})
        assert len(tables_in(dsn)) == 2
        ProjectionRunner(one).reset("tables")
        assert len(tables_in(dsn)) == 1
        assert rows_of(other) == {"a": (20, 1)}


def test_a_rebuild_leaves_the_tables_of_the_live_read_model_alone(dsn: str) -> None:
    with open_projections(f"{dsn}&store=one") as store:
        store.append("a", [paid(1)])
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Tables(store))
        [live] = tables_in(dsn)
        runner.rebuild(Tables(store))
        [rebuilt] = tables_in(dsn)
        assert live != rebuilt
        assert rows_of(store) == {"a": (1, 1)}


def test_a_name_that_postgres_would_cut_off_is_refused(dsn: str) -> None:
    class Long(Projection):
        name = "a-name-of-some-length"

        def handle(self, event: Event, view: View) -> None:
            view.execute(f"CREATE TABLE {view.table('a table with a name of some length')} (n int)")

    with open_projections(f"{dsn}&store=one") as store:
        store.append("a", [paid(1)])
        with pytest.raises(Invalid, match="63 bytes"):
            ProjectionRunner(store).catch_up_persistent(Long())
        assert tables_in(dsn) == []


def test_a_statement_that_fails_undoes_its_event_alone(dsn: str) -> None:
    class Positive(Projection):
        name = "positive"

        def handle(self, event: Event, view: View) -> None:
            view.execute(f"CREATE TABLE IF NOT EXISTS {view.table('t')} (cents int CHECK (cents > 0))")
            view.execute(f"INSERT INTO {view.table('t')} VALUES (%s)", (event.json()["cents"],))

    with open_projections(f"{dsn}&store=one") as store:
        store.append("a", [paid(1), paid(-1), paid(2)])
        with pytest.raises(Invalid) as caught:
            ProjectionRunner(store).catch_up_persistent(Positive())
        assert isinstance(caught.value.__cause__, psycopg.errors.CheckViolation)
        assert store.lag("positive").position == 1
        assert store.view("positive").query(lambda table: f"SELECT cents FROM {table('t')}") == [(1,)]


def test_a_projection_whose_store_was_opened_elsewhere_writes_no_table(dsn: str) -> None:
    with open_projections(f"{dsn}&store=one") as first:
        first.append("a", [paid(1)])
        with open_projections(f"{dsn}&store=one") as second:
            with pytest.raises(Fenced):
                ProjectionRunner(first).catch_up_persistent(Tables(first))
            assert tables_in(dsn) == []
            ProjectionRunner(second).catch_up_persistent(Tables(second))
            assert rows_of(second) == {"a": (1, 1)}


def test_the_password_is_for_executors_alone(dsn: str) -> None:
    with open_projections(f"{dsn}&store=one") as store:
        assert store.url == f"{dsn}&store=one"
        assert "password" not in store.address


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "SELECT 1"])
def test_several_statements_in_one_are_refused(dsn: str, ending: str) -> None:
    """A COMMIT behind an INSERT would make the row durable without the cursor."""

    class Several(Projection):
        name = "several"

        def handle(self, event: Event, view: View) -> None:
            table = view.table("rows")
            view.execute(f"CREATE TABLE IF NOT EXISTS {table} (n int)")
            view.execute(f"INSERT INTO {table} VALUES (1); {ending}")

    with open_projections(f"{dsn}&store=one") as store:
        store.append("a", [paid(1)])
        runner = ProjectionRunner(store)
        for _ in range(2):
            with pytest.raises(Invalid, match="multiple commands"):
                runner.catch_up_persistent(Several())
        assert tables_in(dsn) == []
        store.append("a", [paid(2)])


def test_a_view_of_somebody_else_stays_and_holds_nothing_up(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """It would go with a CASCADE. The table under it is left to its owner, and the projection goes on."""
    with open_projections(f"{dsn}&store=one") as store:
        store.append("a", [paid(1)])
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Tables(store))
        [live] = tables_in(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute(f'CREATE MATERIALIZED VIEW report AS SELECT * FROM "{live}"')
        runner.rebuild(Tables(store))
        assert live in tables_in(dsn)
        assert any(f'"{live}" of an old read model stays' in record.getMessage() for record in caplog.records)
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT cents FROM report").fetchall() == [(1,)]
        caplog.clear()
        store.append("a", [paid(2)])
        assert runner.catch_up_persistent(Tables(store)).handled == 1
        assert caplog.text == ""


def test_materialized_views_go_with_their_build(dsn: str) -> None:
    class Materialized(Tables):
        def handle(self, event: Event, view: View) -> None:
            super().handle(event, view)
            table, materialized, top = view.table("by stream"), view.table("kept"), view.table("top")
            view.execute(f"CREATE MATERIALIZED VIEW IF NOT EXISTS {materialized} AS SELECT * FROM {table}")
            view.execute(f"CREATE OR REPLACE VIEW {top} AS SELECT * FROM {materialized}")

    with open_projections(f"{dsn}&store=one") as store:
        store.append("a", [paid(1)])
        runner = ProjectionRunner(store)
        runner.catch_up_persistent(Materialized(store))
        runner.rebuild(Materialized(store))
        assert len(tables_in(dsn)) == 1
        assert sorted(kind for kind, _ in store.kv.views(store.kv.table_prefix)) == ["MATERIALIZED VIEW", "VIEW"]
        runner.reset("tables")
        assert tables_in(dsn) == store.kv.views(store.kv.table_prefix) == []


def test_a_right_that_was_revoked_is_no_events_fault(pg_server: PostgresServer, dsn: str) -> None:
    """Each event would fail: all of them would end as dead letters, and the cursors beyond them."""
    role = f"reader_{uuid.uuid4().hex[:8]}"
    database = dsn.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(dsn) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT CREATE ON DATABASE {database} TO {role}")
        owner.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {role}")
    url = pg_server.dsn(database, user=role, password="secret")
    with open_projections(f"{url}&store=one") as store:
        store.append("a", [paid(1)])
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"))
        runner.catch_up_persistent(Tables(store))
        [table] = tables_in(dsn)
        with psycopg.connect(dsn) as owner:
            owner.execute(f'ALTER TABLE "{table}" OWNER TO CURRENT_USER; GRANT SELECT ON "{table}" TO {role}')
        store.append("a", [paid(2), paid(3)])
        with pytest.raises(Invalid) as caught:
            runner.catch_up_persistent(Tables(store))
        assert caught.value.code == "store.denied"
        assert (store.dead_letters("tables"), store.lag("tables").events) == ([], 2)
        worker = ProjectionWorker(runner, [Tables(store)])
        worker.turn()
        assert worker.health().projections["tables"].state == "retrying"
        with psycopg.connect(dsn) as owner:
            owner.execute(f'GRANT INSERT, UPDATE ON "{table}" TO {role}')
        worker.resume("tables")
        worker.turn()
        assert rows_of(store) == {"a": (6, 3)}
        assert store.dead_letters("tables") == []
