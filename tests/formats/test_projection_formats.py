"""Stores of events as version 0.1.0 wrote them open, hold events, cursors and read models, and go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from museum import EVENTS, FAILS, REBUILT, SEEN, T0, WORKER, Listed, NetTurnover, Turnover, sums, unpack

from holdfast.errors import Conflict
from holdfast.projections import (
    DeadLetter,
    Lag,
    NewEvent,
    ProjectionRunner,
    ProjectionStore,
    ProjectionWorker,
    open_projections,
)

WHEN = int(T0 * 1000)


@pytest.fixture(params=["sqlite", "slatedb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = unpack(f"projections-{request.param}.tar.gz", tmp_path / "store")
    return f"sqlite:///{folder}/events.db" if request.param == "sqlite" else f"file://{folder}"


@pytest.fixture
def store(url: str) -> Iterator[ProjectionStore]:
    with open_projections(url) as store:
        yield store


def has_sql(store: ProjectionStore) -> bool:
    return store.address.startswith("sqlite")


@pytest.mark.parametrize("read_only", [True, False])
def test_every_event_is_as_it_was_appended(url: str, read_only: bool) -> None:
    with open_projections(url, read_only=read_only) as store:
        found = list(store.read_all())
        assert store.position == len(EVENTS)
        assert [event.position for event in found] == list(range(1, len(EVENTS) + 1))
        payloads = [event.json() if event.is_json else event.payload for event in found]
        assert [(e.stream, e.type, p) for e, p in zip(found, payloads, strict=True)] == EVENTS
        first, last = found[0], found[-1]
        assert (first.event_id, first.schema_version, first.correlation_id) == ("event-1", 3, "request")
        assert (first.causation_id, first.time_ms, first.sequence) == ("command", 1000, 1)
        assert (last.time_ms, last.schema_version, last.correlation_id) == (WHEN, 1, None)
        assert store.list_streams() == ["cart-ä", "order-1", "order-2", "order-3"]
        assert [event.position for event in store.read_stream("order-1")] == [1, 2, 4]
        assert store.stream_version("order-1") == 3


@pytest.mark.parametrize("read_only", [True, False])
def test_projections_stand_where_they_stood(url: str, read_only: bool) -> None:
    with open_projections(url, read_only=read_only) as store:
        expected = {key: b"%d" % cents for key, cents in sums(EVENTS[:SEEN]).items()}
        assert dict(store.view("turnover").scan()) == expected
        assert store.load_projection_checkpoint("turnover").cursors == {"order-1": 3, "order-2": 2, "cart-ä": 1}
        assert store.load_projection_checkpoint("by-hand").cursors == {"order-1": 2, "cart-ä": 1}
        assert store.lag("turnover") == Lag(SEEN, len(EVENTS))
        letter = DeadLetter(4, "order-1", 3, FAILS, "ValueError: cannot be read", 1, WHEN)
        assert store.dead_letters("turnover") == [letter]
        by_name = {found.name: found for found in store.projections()}
        assert sorted(by_name) == ["by-hand", *(["listed"] if has_sql(store) else []), "turnover"]
        turnover = by_name["turnover"]
        assert (turnover.version, turnover.rebuilding, turnover.dead_letters) == (1, REBUILT, 1)
        assert (turnover.updated_ms, turnover.holder) == (WHEN, WORKER)
        if has_sql(store):
            asked = store.view("listed").query(lambda table: f"SELECT * FROM {table('orders')} ORDER BY position")
            assert asked == [("order-1", 1), ("order-1", 2), ("order-2", 3), ("order-1", 4), ("order-2", 6)]


def test_appending_and_catching_up_go_on(store: ProjectionStore) -> None:
    with pytest.raises(Conflict):
        store.append("order-3", [NewEvent("paid", {"cents": 1})], expected="none")
    (event,) = store.append("order-3", [NewEvent("paid", {"cents": 12})], expected=1)
    assert (event.position, event.sequence) == (len(EVENTS) + 1, 2)
    done = ProjectionRunner(store).catch_up_persistent(Turnover())
    assert (done.position, done.handled, done.cursors) == (8, 2, 1)
    expected = {key: b"%d" % cents for key, cents in sums([*EVENTS, ("order-3", "paid", {"cents": 12})]).items()}
    assert dict(store.view("turnover").scan()) == expected
    if has_sql(store):
        assert ProjectionRunner(store).catch_up_persistent(Listed()).handled == 2
        assert len(store.view("listed").query(lambda table: f"SELECT * FROM {table('orders')}")) == 7


def test_a_worker_takes_over_the_lease_that_has_run_out(store: ProjectionStore) -> None:
    worker = ProjectionWorker(ProjectionRunner(store), [Turnover()])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        store.wait_for("turnover", len(EVENTS))
        assert {found.name: found.holder for found in store.projections()}["turnover"] not in (None, WORKER)
    finally:
        worker.stop()
        thread.join()


def test_a_rebuild_that_was_under_way_is_resumed(store: ProjectionStore) -> None:
    done = ProjectionRunner(store).rebuild(NetTurnover(), resume=True)
    assert done.handled == len(EVENTS) - REBUILT
    expected = {key: b"%.2f" % (cents / 100) for key, cents in sums(EVENTS).items()}
    assert dict(store.view("turnover").scan()) == expected
    assert store.dead_letters("turnover") == []
    (turnover,) = [found for found in store.projections() if found.name == "turnover"]
    assert (turnover.version, turnover.rebuilding, turnover.lag.events) == (2, None, 0)


def test_dead_letters_can_be_handled_again(store: ProjectionStore) -> None:
    class Corrected(Turnover):
        def handle(self, event, view):  # type: ignore[no-untyped-def]
            view.put(b"corrected", b"%d" % event.position)

    assert ProjectionRunner(store).retry_dead_letters(Corrected()) == []
    assert store.view("turnover").get(b"corrected") == b"4"
    assert store.dead_letters("turnover") == []
