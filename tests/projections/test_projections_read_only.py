"""A look at a store: what it shows, that it makes and changes nothing, and that nobody notices."""

from __future__ import annotations

import sqlite3

import pytest
from projection_places import PLACES

from holdfast.errors import Invalid, NotFound
from holdfast.projections import NewEvent, Projection, ProjectionRunner, open_projections
from holdfast.projections.event import Event
from holdfast.projections.view import View
from holdfast.testing.conformance.projections.subject import Turnover, contents, fresh_fold, paid


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest) -> str:
    return PLACES[request.param].fresh(request)


def test_it_makes_no_store(url: str) -> None:
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            open_projections(url, read_only=True)
        assert caught.value.code == "store.none"


def test_it_shows_what_is_committed_beside_whoever_has_it_open(url: str) -> None:
    with open_projections(url) as store:
        store.append("order-1", [paid(1), paid(2)])
        store.append("order-2", [paid(3)])
        ProjectionRunner(store).catch_up_persistent(Turnover())
        with open_projections(url, read_only=True) as look:
            assert (look.address, look.is_persistent) == (store.address, store.is_persistent)
            assert list(look.read_all()) == list(store.read_all())
            assert list(look.read_stream("order-1", 1)) == list(store.read_stream("order-1", 1))
            assert look.list_streams("order-", limit=1) == ["order-1"]
            assert look.list_streams("order-3") == []
            assert contents(look) == contents(store) == fresh_fold(store)
            assert look.projections() == store.projections()
        store.append("order-1", [paid(4)])  # nobody was fenced
        with open_projections(url, read_only=True) as look:
            assert look.lag(Turnover.name).events == 1


def test_it_refuses_to_write(url: str) -> None:
    with open_projections(url) as store:
        store.append("a", [paid(1)])
        with open_projections(url, read_only=True) as look:
            for change in (
                lambda: look.append("a", [paid(2)]),
                lambda: ProjectionRunner(look).catch_up_persistent(Turnover()),
                lambda: ProjectionRunner(look).reset(Turnover.name),
            ):
                with pytest.raises(Invalid) as caught:
                    change()
                assert caught.value.code == "store.read-only"
        assert store.position == 1
        assert store.projections() == []


def test_one_that_was_closed_stays_closed(url: str) -> None:
    with open_projections(url):
        look = open_projections(url, read_only=True)
        look.close()
        look.close()
        with pytest.raises(Invalid) as caught:
            _ = look.position
        assert caught.value.code == "store.closed"


def test_tables_of_ones_own_are_read(request: pytest.FixtureRequest) -> None:
    class Ledger(Projection):
        name = "ledger"

        def handle(self, event: Event, view: View) -> None:
            view.execute(f"CREATE TABLE IF NOT EXISTS {view.table('t')} (n)")
            view.execute(f"INSERT INTO {view.table('t')} VALUES (?)", (event.position,))

    url = PLACES["sqlite"].fresh(request)
    with open_projections(url) as store:
        store.append("a", [NewEvent("x")] * 2)
        ProjectionRunner(store).catch_up_persistent(Ledger())
    with open_projections(url, read_only=True) as look:
        assert look.view("ledger").query(lambda table: f"SELECT n FROM {table('t')}") == [(1,), (2,)]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            look.kv.query("DROP TABLE holdfast_events", ())
