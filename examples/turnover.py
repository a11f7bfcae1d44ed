"""A shop's orders into turnover per shop and day: live while they come in, and made anew when the rule is corrected.

    python examples/turnover.py [DIR]

Each order is a stream of events: placed, paid, sometimes refunded. The first version of the projection forgets refunds.
The second one is built beside it from the first event on, and readers have the old figures until the switch. With DIR,
events and read model stay there: `holdfast projections DIR/shop.db` shows them.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import msgspec

from holdfast.projections import (
    Event,
    NewEvent,
    Projection,
    ProjectionRunner,
    ProjectionStore,
    ProjectionWorker,
    View,
    open_projections,
)

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


class Sale(msgspec.Struct):
    shop: str
    cents: int


class Turnover(Projection):
    """What was paid. It forgets refunds."""

    name = "turnover"
    streams = "order-"
    counts: ClassVar = {"paid": 1}

    def handle(self, event: Event, view: View) -> None:
        if sign := self.counts.get(event.type):
            sale = event.json(Sale)
            key = f"{sale.shop} {datetime.fromtimestamp(event.time_ms / 1000, UTC):%Y-%m-%d}".encode()
            view.put(key, b"%d" % (int(view.get(key) or 0) + sign * sale.cents))


class NetTurnover(Turnover):
    """What was paid, less what was refunded. Another version, so the read model has to be made anew."""

    version = 2
    counts: ClassVar = {"paid": 1, "refunded": -1}


def sell(store: ProjectionStore, orders: int, chance: random.Random) -> int:
    """Orders come in; the position of the last event."""
    for _ in range(orders):
        stream = f"order-{store.position}"  # a number that no order has yet
        sale = Sale(f"shop-{chance.randint(1, 2)}", chance.randint(100, 9900))
        at = MONDAY + timedelta(minutes=chance.randrange(3 * 24 * 60))
        events = [NewEvent(what, sale, time_ms=int(at.timestamp() * 1000)) for what in ("placed", "paid", "refunded")]
        store.append(stream, events[:2], expected="none")
        if chance.random() < 0.2:
            store.append(stream, events[2:], expected=2)
    return store.position


@contextlib.contextmanager
def kept_up(store: ProjectionStore, projection: Projection) -> Iterator[None]:
    """A worker for the length of a block; it would run in a process of its own just as well."""
    worker = ProjectionWorker(ProjectionRunner(store, on_version="rebuild"), [projection])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def show(store: ProjectionStore) -> None:
    (found,) = store.projections()
    print(f"\n  version {found.version}, {found.lag.position} of {found.lag.head} events")
    for key, cents in store.view("turnover").scan():
        print(f"    {key.decode()}  {int(cents) / 100:>10,.2f}")
    print()


def run(folder: Path) -> None:
    chance = random.Random(7)
    with open_projections(folder / "shop.db") as store:
        print("Orders come in, and a worker keeps the turnover up to date.")
        with kept_up(store, Turnover()):
            store.wait_for("turnover", sell(store, 1, chance))  # one's own writes are in it from here on
            for _ in range(4):
                position = sell(store, 50, chance)
                print(f"  {position} events, the read model is {store.lag('turnover').events} behind")
            store.wait_for("turnover", position)
        show(store)

        print("Refunds were forgotten. The corrected version reads everything again, beside the live one.")
        with kept_up(store, NetTurnover()):
            position = sell(store, 50, chance)  # meanwhile more orders come in
            store.wait_for("turnover", position)
        show(store)

        fresh = ProjectionRunner(store).run(NetTurnover(), store.read_all())
        assert dict(store.view("turnover").scan()) == dict(fresh.scan())
        print("The read model is what all events give when they are folded anew.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("DIR", type=Path, nargs="?")
    given = parser.parse_args()
    if given.DIR:
        run(given.DIR)
    else:
        with tempfile.TemporaryDirectory() as name:
            run(Path(name))
