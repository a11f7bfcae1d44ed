"""The rival: the `eventsourcing` library's projection runner, its events in memory, its view on SQLite."""

from __future__ import annotations

import time
from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import Tracking
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.sqlite import SQLiteTrackingRecorder

STREAMS = 500
PER_STREAM = 10


class Order(Aggregate):
    @event("Paid")
    def pay(self, cents: int, currency: str) -> None:
        pass


class Shop(Application):
    """Full before anybody subscribes to it, so that what is measured is the projection alone."""

    filled_at = 0.0
    last = 0

    def __init__(self, env: Any = None) -> None:
        super().__init__(env)
        for _ in range(STREAMS):
            order = Order()
            for _ in range(PER_STREAM - 1):
                order.pay(1290, "EUR")
            Shop.last = self.save(order)[-1].notification.id
        Shop.filled_at = time.perf_counter()


class LastView(SQLiteTrackingRecorder):
    def construct_create_table_statements(self) -> list[str]:
        table = "CREATE TABLE IF NOT EXISTS last (stream TEXT PRIMARY KEY, payload BLOB)"
        return [*super().construct_create_table_statements(), table]

    def put(self, stream: str, payload: bytes, tracking: Tracking) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(
                "INSERT INTO last VALUES (?, ?) ON CONFLICT (stream) DO UPDATE SET payload = excluded.payload",
                (stream, payload),
            )


class Last(Projection[LastView]):
    name = "last"

    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        self.view.put(str(domain_event.originator_id), b'{"cents":1290,"currency":"EUR"}', tracking)


def events_per_second(folder: str) -> float:
    env = {
        "LAST_PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "LAST_SQLITE_DBNAME": f"{folder}/eventsourcing.db",
    }
    with ProjectionRunner(application_class=Shop, projection_class=Last, view_class=LastView, env=env) as runner:
        runner.wait(Shop.last, timeout=600)
        return STREAMS * PER_STREAM / (time.perf_counter() - Shop.filled_at)
