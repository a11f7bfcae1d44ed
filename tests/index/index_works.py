"""What the crash tests run in processes that are killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from holdfast.index import Index, SourceCheckpoint, configuration, open_index
from holdfast.index import session as sessions

# Also those that are not used: imported before the fork, not in each of a hundred processes.
from holdfast.storage.kv import postgres, redis, rocksdb, sqlite  # noqa: F401
from holdfast.testing.faults.crash import Acknowledge

Snapshot = tuple[dict[bytes, bytes], dict[str, SourceCheckpoint], int | None, list[tuple[Any, ...]]]


def small_chunks() -> None:
    """Sessions outgrow memory and resets take several commits, with a handful of keys."""
    sessions.HELD_CHANGES = 8
    configuration.RESET_CHUNK = 8
    sqlite.SPILL_BYTES = postgres.SPILL_BYTES = 0


def open_at(url: str) -> Index:
    return open_index(url, clock=lambda: 1_760_000_000.0)


def snapshot(index: Index) -> Snapshot:
    checkpoints = index.checkpoints
    gaps = [(gap.source_id, gap.from_position, gap.to_position, gap.why) for gap in index.gaps()]
    return dict(index.results.scan()), checkpoints.read_all_checkpoints(), checkpoints.read_config_hash(), gaps


def session(number: int, size: int) -> Callable[[Index], object]:
    def change(index: Index) -> None:
        with index.session():
            index.checkpoints.stage_checkpoint("a", number, b"early")
            for key in range(size):
                index.results.put(b"%03d" % key, b"%d" % number)
            index.results.delete(b"%03d" % number)
            index.results.put(b"last", b"%d" % number)
            index.checkpoints.stage_checkpoint("a", number, b"at %d" % number)
            index.checkpoints.stage_checkpoint("b:c", 2 * number)

    return change


MILESTONES: list[Callable[[Index], object]] = [
    lambda index: index.configure(1),
    session(1, 3),
    session(2, 18),
    session(3, 5),
    lambda index: index.checkpoints.pass_over("a", 3, b"further", "log was cut"),
    lambda index: index.configure(2, on_change="accept"),
    lambda index: index.configure(3, on_change="reset"),
    session(4, 10),
    lambda index: index.checkpoints.clear_checkpoints(),
    lambda index: index.reset(5),
    session(5, 2),
]


def all_milestones(acknowledge: Acknowledge, url: str, start: int = 0) -> None:
    small_chunks()
    with open_at(url) as index:
        for milestone in MILESTONES[start:]:
            milestone(index)
            acknowledge("done")


def only_open(acknowledge: Acknowledge, url: str) -> None:
    small_chunks()
    with open_at(url):
        acknowledge("opened")


def endless_sessions(acknowledge: Acknowledge, url: str) -> None:
    """Until the end comes from outside."""
    with open_at(url) as index:
        found = index.checkpoints.read_checkpoint("a")
        for number in itertools.count(found.sequence + 1 if found else 1):
            session(number, 200)(index)
            acknowledge(str(number))
