"""A shop's store of events with one projection, read and damaged past Holdfast."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from holdfast.projections import (
    Event,
    NewEvent,
    OnError,
    Projection,
    ProjectionRunner,
    ProjectionStore,
    View,
    open_projections,
)

SHOP = """
from holdfast.projections import Projection

class Turnover(Projection):
    name = "turnover"
    times = 1

    def handle(self, event, view):
        if event.type == "poison":
            raise ValueError("cannot be read")
        key = event.stream.encode()
        view.put(key, b"%d" % (int(view.get(key) or 0) + self.times))

class Doubled(Turnover):
    version = 2
    times = 2

class Corrected(Turnover):
    def handle(self, event, view):
        view.put(b"corrected-%d" % event.position, b"1")

class CorrectedInPart(Corrected):
    def handle(self, event, view):
        if event.position == 2:
            raise ValueError("still not")
        super().handle(event, view)

class Other(Turnover):
    name = "other"

class Volatile(Turnover):
    is_volatile = True

class Demanding(Turnover):
    def __init__(self, rate): ...

ready = Doubled()
number = 17
"""


class Turnover(Projection):
    """The first one of SHOP."""

    name = "turnover"

    def handle(self, event: Event, view: View) -> None:
        if event.type == "poison":
            raise ValueError("cannot be read")
        key = event.stream.encode()
        view.put(key, b"%d" % (int(view.get(key) or 0) + 1))


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def fill(store: ProjectionStore) -> None:
    """Seven events of three orders; turnover has six of them, two of which it could not handle."""
    for stream, kinds in (
        ("order-1", ["paid", "poison"]),
        ("order-2", ["paid"]),
        ("order-3", ["poison", "paid", "paid"]),
    ):
        store.append(stream, [NewEvent(kind) for kind in kinds])
    ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Turnover())
    store.append("order-2", [NewEvent("paid")])


@contextlib.contextmanager
def looking(path: Path) -> Iterator[ProjectionStore]:
    with open_projections(url_of(path), read_only=True) as store:
        yield store


def contents(path: Path) -> list[str]:
    """Everything in the database, read past Holdfast."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def change(path: Path, sql: str, *parameters: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute(sql, parameters).rowcount == 1


def damage(path: Path, space: str, key: bytes) -> None:
    change(path, f"UPDATE holdfast_{space} SET value = x'0102030405' WHERE key = ?", key)


def table(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def view(path: Path, name: str = "turnover") -> dict[bytes, bytes]:
    with looking(path) as store:
        return dict(store.view(name).scan())


def unfinished_rebuild(path: Path) -> None:
    """Of version 2, with three events of seven."""

    class Doubled(Turnover):
        version = 2

    with open_projections(url_of(path)) as store:
        asked = iter([False] * 4 + [True])  # one more for the event that is put aside
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"), batch=1)
        assert not runner.rebuild(Doubled(), stop=lambda: next(asked)).is_at_the_end


LIVE = {b"order-1": b"1", b"order-2": b"1", b"order-3": b"2"}
