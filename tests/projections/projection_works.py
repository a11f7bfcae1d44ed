"""What the crash tests run in processes that are killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

# Once, before the crash ring forks.
import holdfast.storage.kv.postgres
import holdfast.storage.kv.redis
import holdfast.storage.kv.rocksdb
import holdfast.storage.kv.slatedb  # noqa: F401
from holdfast.errors import Conflict, NotFound
from holdfast.projections import (
    Append,
    GlobalProjectionCheckpoint,
    OnError,
    ProjectionRunner,
    ProjectionStore,
    ProjectionWorker,
    open_projections,
    rebuild,
)
from holdfast.projections.view import has_sql
from holdfast.testing.conformance.projections.subject import Turnover, contents, fresh_fold, paid
from holdfast.testing.conformance.projections.views import Tables, rows_of
from holdfast.testing.faults.crash import Acknowledge

Milestone = Callable[[ProjectionStore], object]


def open_at(url: str, later: float = 0) -> ProjectionStore:
    """`later` is how many seconds have passed, in which leases may have run out."""
    rebuild.CHUNK = 6
    return open_projections(url, clock=lambda: 1_760_000_000.0 + later, ids=lambda: "id")


def runner(store: ProjectionStore) -> ProjectionRunner:
    return ProjectionRunner(store, batch=4, on_error=OnError(then="dead-letter"))


def append(stream: str, expected: int, *cents: int | str) -> Milestone:
    def change(store: ProjectionStore) -> None:
        try:
            store.append(stream, [paid(amount) for amount in cents], expected=expected)
        except Conflict:  # done by the process that was killed before it could say so
            assert store.stream_version(stream) == expected + len(cents)

    return change


def catch_up(store: ProjectionStore) -> None:
    runner(store).catch_up_persistent(Turnover())


def tables(store: ProjectionStore) -> None:
    if has_sql(store.kv):
        runner(store).catch_up_persistent(Tables(store))
        runner(store).rebuild(Tables(store))


def work_a_turn(store: ProjectionStore) -> None:
    worker = ProjectionWorker(runner(store), [Turnover()])
    worker.turn()
    worker.stop()
    worker.run()


def seed_style(store: ProjectionStore) -> None:
    """The three methods by themselves, under a name that no runner uses."""
    store.save_projection_checkpoint("bare", GlobalProjectionCheckpoint({"a": 1, "b": 1}))
    before = store.load_projection_checkpoint("bare")
    after = before.copy()
    after.advance("a", 5)
    store.advance_projection_cursors("bare", before, after)


MILESTONES: list[Milestone] = [
    append("a", 0, 1, 2, 3, 4),
    lambda store: store.append_many([Append("b", [paid(10)]), Append("c/d", [paid(20)])]) if store.position < 6 else 0,
    catch_up,
    append("b", 1, 30, "bad", 40),
    catch_up,
    tables,
    append("a", 4, 5, 6),
    lambda store: runner(store).rebuild(Turnover()),
    lambda store: runner(store).rewind(Turnover(), 5),
    lambda store: runner(store).reset("turnover"),
    append("e", 0, "bad", 7),
    catch_up,
    seed_style,
    append("e", 2, 8),
    work_a_turn,
    lambda store: runner(store).rewind(Turnover(), store.position, view="keep"),
]


def all_milestones(acknowledge: Acknowledge, url: str, start: int = 0) -> None:
    with open_at(url) as store:
        for milestone in MILESTONES[start:]:
            milestone(store)
            acknowledge("done")


def check(store: ProjectionStore) -> int:
    """Each read model is exactly a fold of the events up to its position, and its cursors are of that position."""
    events = list(store.read_all())
    assert [event.position for event in events] == list(range(1, len(events) + 1))
    for stream in store.list_streams():
        assert [event.sequence for event in store.read_stream(stream)] == list(
            range(1, store.stream_version(stream) + 1)
        )
    for name in ("turnover", "tables"):
        try:
            position = store.lag(name).position
        except NotFound:
            continue
        done = [event for event in events if event.position <= position]
        assert store.load_projection_checkpoint(name).cursors == {event.stream: event.sequence for event in done}
        bad = [event.position for event in done if event.json()["cents"] == "bad"]
        assert [letter.position for letter in store.dead_letters(name)] == bad
        if name == "turnover":
            assert contents(store) == fresh_fold(store, position)
        elif len(done) > len(bad):
            good = [event for event in done if event.position not in bad]
            assert rows_of(store) == {
                stream: (sum(event.json()["cents"] for event in found), len(found))
                for stream in {event.stream for event in good}
                for found in [[event for event in good if event.stream == stream]]
            }
    return len(events)


def endless(acknowledge: Acknowledge, url: str) -> None:
    """Until the end comes from outside."""
    with open_at(url) as store:
        for number in itertools.count(store.position + 1):
            store.append(f"stream-{number % 7}", [paid(number)])
            if number % 3 == 0:
                runner(store).catch_up_persistent(Turnover())
            if number % 20 == 0:
                runner(store).rebuild(Turnover())
            acknowledge(str(number))
