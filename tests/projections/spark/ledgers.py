"""Projections that run in one process and on Spark, and stores to compare what came of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from holdfast.projections import Append, Event, OnError, Projection, ProjectionRunner, ProjectionStore, View
from holdfast.projections.keys import SCHEMA
from holdfast.storage.kv.open import open_kv
from holdfast.testing.conformance.projections.subject import Boom, CountedStore, paid

# The executors do not have the folder of the tests among their paths.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NOW = 1_760_000_000.0
LETTERS = OnError(retries=1, wait=0.0, then="dead-letter")
SPACES = ("views", "cursors", "letters")


class Ledger(Projection):
    """A balance per stream, and the place of every event in the order of its stream."""

    name = "ledger"

    def handle(self, event: Event, view: View) -> None:
        account = event.stream.encode()
        count = len(list(view.scan(b"entry/" + account + b"/")))
        view.put(b"entry/%s/%06d" % (account, count), b"%d" % event.position)
        amount = event.json()["cents"]
        if amount == "bad":
            raise Boom("bad amount")
        if amount == 0:
            view.delete(b"balance/" + account)
        else:
            view.put(b"balance/" + account, b"%d" % (int(view.get(b"balance/" + account) or 0) + amount))


class ByAmount(Projection):
    """Sums by the last digit of the amount: the events of one stream go into several groups."""

    name = "by-amount"

    def key(self, event: Event) -> str:
        return str(event.json()["cents"])[-1]

    def handle(self, event: Event, view: View) -> None:
        key = self.key(event).encode()
        view.put(key, (view.get(key) or b"") + b" %d" % event.position)


class Sums(Projection):
    """One sum over everything, which every stream would write."""

    name = "sums"

    def handle(self, event: Event, view: View) -> None:
        view.put(b"sum", b"%d" % (int(view.get(b"sum") or 0) + event.position))


class InTables(Projection):
    """A read model by SQL, whose handler would let nobody know."""

    name = "in-tables"

    def handle(self, event: Event, view: View) -> None:
        try:
            view.execute(f"CREATE TABLE {view.table('t')} (a)")
        except Exception:
            view.put(b"never", b"mind")


def opened(place: Path, clock: Callable[[], float] = lambda: NOW) -> ProjectionStore:
    return ProjectionStore(CountedStore(open_kv(f"sqlite:///{place}", SCHEMA, "shared")), clock=clock, ids=lambda: "id")


def fill(store: ProjectionStore, events: int, *, first: int = 0, streams: int = 9, bad: int = 0) -> None:
    """Every `bad`th event cannot be handled, and some empty an account."""
    store.append_many(
        [
            Append(f"account-{(n * 7) % streams}", [paid("bad" if bad and n % bad == bad - 1 else n % 23)])
            for n in range(first, first + events)
        ]
    )


def copied(place: Path, to: str) -> Path:
    """A store that is closed, once more."""
    return Path(shutil.copy(place, place.with_name(to)))


def in_process(store: ProjectionStore, projection: Projection, **options: Any) -> None:
    ProjectionRunner(store, **options).catch_up_persistent(projection)


def kept(store: ProjectionStore) -> dict[str, Any]:
    """Everything that projections have made, byte for byte, and where they stand."""
    found: dict[str, Any] = {space: list(store.kv.scan(space, b"", None)) for space in SPACES}
    found["standing"] = [(status.name, status.version, status.lag) for status in store.projections()]
    return found
