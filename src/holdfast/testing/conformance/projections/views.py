"""Read models elsewhere than in the store's view: replays into memory, and tables of one's own."""

from __future__ import annotations

import pytest

from holdfast.errors import Invalid
from holdfast.projections import Append, Event, MemoryView, OnError, Projection, ProjectionRunner, ProjectionStore, View
from holdfast.projections.view import has_sql, table_prefix
from holdfast.testing.conformance.projections.subject import Boom, FilledUnderTest, Turnover, contents, fresh_fold, paid


class Tables(Projection):
    """A read model in tables of its own."""

    name = "tables"

    def __init__(self, store: ProjectionStore) -> None:
        self._marker = "%s" if store.address.startswith("postgresql:") else "?"

    def handle(self, event: Event, view: View) -> None:
        table = view.table("by stream")
        view.execute(f"CREATE TABLE IF NOT EXISTS {table} (stream TEXT PRIMARY KEY, cents INTEGER, events INTEGER)")
        view.execute(
            f"INSERT INTO {table} AS old VALUES ({self._marker}, {self._marker}, 1) "
            "ON CONFLICT (stream) DO UPDATE SET cents = old.cents + excluded.cents, events = old.events + 1",
            (event.stream, event.json()["cents"] if event.json()["cents"] != "bad" else 0),
        )
        if event.json()["cents"] == "bad":
            raise Boom("bad amount")
        view.put(b"last", b"%d" % event.position)


def rows_of(store: ProjectionStore, name: str = "tables") -> dict[str, tuple[int, int]]:
    found = store.view(name).query(lambda table: f"SELECT stream, cents, events FROM {table('by stream')}")
    return {stream: (cents, events) for stream, cents, events in found}


class ViewConformance(FilledUnderTest):
    """`run`, `catch_up` and what belongs to them; `View.execute`."""

    def test_replays(self) -> None:
        store = self.filled(streams=3, events=4)
        store.append("else", [paid(1000)])
        runner = ProjectionRunner(store)
        everything = fresh_fold(store)
        events = list(store.read_all())
        for view in (runner.run(Turnover(), events), runner.run_all([Turnover()], iter(events))):
            assert dict(view.scan()) == everything
        one = list(store.read_stream("order-2"))
        assert [key for key, _ in runner.catch_up(Turnover(), one, after=3).scan(b"seen")] == [b"seen/00000012"]
        view = MemoryView()
        assert runner.run_from_store(Turnover(), "order-2", view) == 4
        assert runner.catch_up_from_store(Turnover(), "order-2", 4, view) == 4
        assert view.get(b"total") == b"12"
        view = MemoryView()
        reached = runner.run_all_streams(Turnover(), view=view)
        assert view.values == everything
        assert reached.cursors == {"order-0": 4, "order-1": 4, "order-2": 4, "else": 1}
        store.append("order-1", [paid(5)])
        later = runner.catch_up_all_streams(Turnover(), reached, view=view)
        assert view.values == fresh_fold(store)
        assert (later.cursor_for("order-1"), reached.cursor_for("order-1")) == (5, 4)
        view = MemoryView()
        reached = runner.run_matching_streams(Turnover(), "order-", view)
        assert view.values == fresh_fold(store, prefix="order-")
        store.append("order-1", [paid(5)])
        runner.catch_up_matching_streams(Turnover(), "order-", reached, view)
        assert view.values == fresh_fold(store, prefix="order-")
        view = MemoryView()
        assert runner.run_all_streams(Turnover(), ["else", "nobody"], view).cursors == {"else": 1}
        assert view.get(b"total") == b"1000"

    def test_tables_of_ones_own(self) -> None:
        store = self.open()
        store.append_many([Append("a", [paid(1), paid(2)]), Append("b", [paid("bad"), paid(4)])])
        runner = ProjectionRunner(store)
        if not self.abilities.sql:
            with pytest.raises(Invalid, match="no SQL"):
                runner.catch_up_persistent(Tables(store))
            with pytest.raises(Invalid, match="no SQL"):
                rows_of(store)
            return
        with pytest.raises(Invalid):
            runner.catch_up_persistent(Tables(store))
        assert rows_of(store) == {"a": (3, 2)}
        assert (store.lag("tables").position, contents(store, "tables")) == (2, {b"last": b"2"})
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"))
        runner.catch_up_persistent(Tables(store))
        store = self.reopened(store)
        assert rows_of(store) == {"a": (3, 2), "b": (4, 1)}
        assert store.load_projection_checkpoint("tables").cursors == {"a": 2, "b": 2}
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"))
        store.append("a", [paid(10)])
        runner.rebuild(Tables(store))
        assert rows_of(store) == {"a": (13, 3), "b": (4, 1)}

    @pytest.mark.parametrize("how", ["rebuild", "given up", "reset"])
    def test_views_over_tables_go_with_their_build(self, how: str) -> None:
        store = self.open()
        kv = store.kv
        if not has_sql(kv):
            assert not self.abilities.sql
            return

        class Summed(Tables):
            def handle(self, event: Event, view: View) -> None:
                super().handle(event, view)
                if event.sequence == 1:
                    sums, top = view.table("sums"), view.table("atop")
                    view.execute(f"CREATE VIEW {sums} AS SELECT sum(cents) AS cents FROM {view.table('by stream')}")
                    view.execute(f"CREATE VIEW {top} AS SELECT cents FROM {sums}")

        store.append("a", [paid(1), paid(2)])
        runner = ProjectionRunner(store, batch=1)
        runner.catch_up_persistent(Summed(store))
        prefix = table_prefix(kv, b"tables", 1)[: -len("1_x_")]
        assert (len(kv.tables(prefix)), len(kv.views(prefix))) == (1, 2)
        if how == "given up":
            runner.rebuild(Summed(store), batches=1)
            assert (len(kv.tables(prefix)), len(kv.views(prefix))) == (2, 4)
        if how == "reset":
            runner.reset("tables")
        else:
            runner.rebuild(Summed(store))
            found = store.view("tables").query(lambda table: f"SELECT cents FROM {table('atop')}")
            assert found == [(3,)]
        left = (0, 0) if how == "reset" else (1, 2)
        assert (len(kv.tables(prefix)), len(kv.views(prefix))) == left
