"""Projections in one process: what a catch-up costs, and what it would cost otherwise."""

from __future__ import annotations

import random
import tempfile
import time

from bench import projections_eventsourcing
from bench.measure import Row, in_turns
from holdfast.projections import (
    Append,
    Event,
    NewEvent,
    Projection,
    ProjectionRunner,
    ProjectionStore,
    View,
    keys,
    open_projections,
)
from holdfast.storage.kv.open import open_kv
from holdfast.testing.conformance.projections.subject import CountedStore

MANY = 100_000
FEW = 10_000
CHANGED = 1_000
ROUNDS = 30
EVENTS = 50_000
_PAID = NewEvent("paid", {"cents": 1290, "currency": "EUR"})


class Turnover(Projection):
    """What was taken in on each day, of orders that are paid in parts for a month."""

    name = "turnover"

    def handle(self, event: Event, view: View) -> None:
        day = b"%d" % (event.position % 30)
        view.put(day, b"%d" % (int(view.get(day) or 0) + event.json()["cents"]))


class Last(Projection):
    """The last event of each stream: one upsert per event."""

    name = "last"

    def handle(self, event: Event, view: View) -> None:
        view.put(event.stream.encode(), event.payload)


class LastInATable(Projection):
    """The same in a table of one's own."""

    name = "last-in-a-table"

    def handle(self, event: Event, view: View) -> None:
        if event.position == 1:
            view.execute(f"CREATE TABLE {view.table('last')} (stream TEXT PRIMARY KEY, payload BLOB)")
        view.execute(
            f"INSERT INTO {view.table('last')} VALUES (?, ?) "
            "ON CONFLICT (stream) DO UPDATE SET payload = excluded.payload",
            (event.stream, event.payload),
        )


class Shop:
    """A store with so many streams, all of them projected."""

    def __init__(self, folder: str, streams: int) -> None:
        self.counts = CountedStore(open_kv(f"sqlite:///{folder}/{streams}.db", keys.SCHEMA, "shared"))
        self.store = ProjectionStore(self.counts)
        self.names = [f"order-{number:06}" for number in range(streams)]
        for start in range(0, streams, 10_000):
            self.store.append_many([Append(name, [_PAID]) for name in self.names[start : start + 10_000]])
        self.runner = ProjectionRunner(self.store)
        self.runner.catch_up_persistent(Turnover())
        self.random = random.Random(streams)
        self.cursors = {b"turnover/" + name.encode(): 1 for name in self.names}

    def change(self) -> None:
        changed = self.random.sample(self.names, CHANGED)
        self.store.append_many([Append(name, [_PAID]) for name in changed])
        for name in changed:
            self.cursors[b"turnover/" + name.encode()] += 1
        self.counts.forget()

    def catch_up(self) -> None:
        assert self.runner.catch_up_persistent(Turnover()).handled == CHANGED
        written = len(self.counts.written("cursors"))
        assert written == CHANGED, f"{written} cursors were written"

    def catch_up_and_save_everything(self) -> None:
        """As where a checkpoint is one thing: every cursor is written again, in one transaction."""
        self.catch_up()
        with self.counts.begin() as transaction:
            transaction.write({"cursors": {key: keys.CURSOR.pack(at) for key, at in self.cursors.items()}})


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        large, small = Shop(folder, MANY), Shop(folder, FEW)
        found = [_by_size(large, small), _against_everything(large), _idle(large)]
        large.store.close()
        small.store.close()
        return [*found, *_against_eventsourcing(folder)]


def _by_size(large: Shop, small: Shop) -> Row:
    def prepare() -> None:
        for shop in (large, small):  # the one that was not measured is behind
            shop.runner.catch_up_persistent(Turnover())
            shop.change()

    ours, theirs = in_turns(large.catch_up, small.catch_up, rounds=ROUNDS, prepare=prepare)
    ratio = ours / theirs
    return Row(
        f"catch-up with {CHANGED:,} changed streams of {MANY:,}, against {CHANGED:,} of {FEW:,}",
        f"{ratio:.2f} x, {CHANGED:,} cursors",
        f"<= 1.5 x, {CHANGED:,} cursors",
        ratio <= 1.5,
        f"{ours * 1e3:.1f} ms against {theirs * 1e3:.1f} ms",
    )


def _against_everything(large: Shop) -> Row:
    large.runner.catch_up_persistent(Turnover())
    ours, theirs = in_turns(
        large.catch_up, large.catch_up_and_save_everything, rounds=ROUNDS // 3, prepare=large.change
    )
    ratio = theirs / ours
    return Row(
        "the same, against saving the whole checkpoint",
        f"{ratio:.1f} x",
        ">= 20 x",
        ratio >= 20,
        f"{ours * 1e3:.1f} ms against {theirs * 1e3:.1f} ms",
    )


def _idle(large: Shop) -> Row:
    large.runner.catch_up_persistent(Turnover())
    large.counts.forget()
    large.runner.catch_up_persistent(Turnover())
    asked, read = len(large.counts.reads), large.counts.keys_read
    return Row(
        f"idle tick with {MANY:,} streams and nothing new",
        f"{asked} reads of {read} key",
        "O(1) reads",
        asked <= 3 and read <= 3 and not large.counts.commits,
    )


def _against_eventsourcing(folder: str) -> list[Row]:
    store = open_projections(f"sqlite:///{folder}/events.db")
    names = [f"order-{number % 5_000:06}" for number in range(EVENTS)]
    for start in range(0, EVENTS, 10_000):
        store.append_many([Append(name, [_PAID]) for name in names[start : start + 10_000]])
    runner = ProjectionRunner(store)
    ours = {}
    for projection in (LastInATable(), Last()):
        began = time.perf_counter()
        assert runner.catch_up_persistent(projection).handled == EVENTS
        ours[projection.name] = EVENTS / (time.perf_counter() - began)
    store.close()
    what = "in-process projection with its read model on SQLite, events per second, against eventsourcing"
    mine = ours["last-in-a-table"]
    told = f"{mine:,.0f}/s by SQL, {ours['last']:,.0f}/s by put"
    theirs = projections_eventsourcing.events_per_second(folder)
    ratio = mine / theirs
    return [Row(what, f"{ratio:.1f} x", ">= 20 x", ratio >= 20, f"{told}; {theirs:,.0f}/s")]
