"""What a heartbeat tells about a driver: running, stopped, failed, dead, fenced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.checkpoints.heartbeat import (
    DEAD_AFTER,
    EVERY,
    KEY,
    DriverState,
    Heartbeat,
    RunState,
    beat,
    judge_driver,
    observe_driver,
    read_heartbeat,
)
from holdfast.checkpoints.lease import LeaseRecord
from holdfast.errors import Fenced

LEASE = LeaseRecord(3, "host-7:2746", 1000, "host-7", 2746, 1000, "0.1.0")


def sign(state: RunState = "running", generation: int = 3, at_ms: int = 0) -> Heartbeat:
    return Heartbeat(generation, "host-7:2746", 1000, state, at_ms)


@pytest.mark.parametrize(
    ("state", "generation", "age", "expected"),
    [
        ("running", 3, 0.0, "running"),
        ("running", 3, EVERY, "running"),
        ("running", 3, DEAD_AFTER, "running"),
        ("running", 3, DEAD_AFTER + 1, "dead"),
        ("running", 3, -300.0, "running"),  # the reader's clock is behind the store's
        ("stopped", 3, 10.0, "stopped"),
        ("stopped", 3, DEAD_AFTER * 100, "stopped"),
        ("failed", 3, DEAD_AFTER * 100, "failed"),
        ("running", 2, 1.0, "fenced"),
        ("running", 2, DEAD_AFTER * 100, "fenced"),
        ("failed", 2, 1.0, "unknown"),  # it ended by itself, and the newest claim has given no sign yet
        ("stopped", 2, 1.0, "unknown"),
    ],
)
def test_the_state_of_a_driver(state: RunState, generation: int, age: float, expected: DriverState) -> None:
    found = judge_driver(LEASE, (sign(state, generation), 5000.0 - age), 5000.0)
    assert found.state == expected
    assert found.taken_over_by == (LEASE if expected == "fenced" else None)


def test_a_driver_without_a_heartbeat_is_unknown() -> None:
    found = judge_driver(LEASE, None, 5000.0)
    assert (found.state, found.owner, found.seen_ms) == ("unknown", "host-7:2746", None)


def test_a_store_that_was_never_claimed_has_no_driver() -> None:
    assert observe_driver(open_store("memory://").objects, 0.0) == (None, None)


def test_its_age_goes_by_the_clock_of_the_store(tmp_path: Path) -> None:
    """The driver's own clock may be off by years."""
    store = open_store(tmp_path)
    store.claim("host-7:2746")
    assert beat(store.objects, sign(generation=1, at_ms=7))
    os.utime(tmp_path / KEY, (10_000, 10_000))
    states = {after: observe_driver(store.objects, 10_000 + after)[1] for after in (1.0, DEAD_AFTER + 1)}
    assert {after: found.state for after, found in states.items() if found} == {1.0: "running", DEAD_AFTER + 1: "dead"}


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_driver_that_was_taken_over_does_not_speak_for_its_successor(place: str, tmp_path: Path) -> None:
    objects = open_store(tmp_path if place == "disk" else "memory://").objects
    assert beat(objects, sign(generation=2))
    assert beat(objects, sign(generation=3))
    assert not beat(objects, sign("stopped", generation=2))
    found = read_heartbeat(objects)
    assert found is not None
    assert (found[0].generation, found[0].state) == (3, "running")


def test_a_store_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    objects = open_store(tmp_path / "store").objects
    assert not beat(objects, sign(), is_first=False)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"generation":3,"state":"asleep"}', b"x" * (1 << 17)])
def test_a_damaged_heartbeat_is_none_and_is_replaced(body: bytes) -> None:
    objects = open_store("memory://").objects
    objects.create(KEY, [body])
    assert read_heartbeat(objects) is None
    assert beat(objects, sign())
    assert read_heartbeat(objects) is not None


def test_a_heartbeat_is_no_claim(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.claim()
    beat(store.objects, sign(generation=99))
    store.check_lease()
    assert store.plan_cleanup(older_than=0).orphans == []
    assert open_store(tmp_path).claim().generation == 2
    with pytest.raises(Fenced):
        store.check_lease()
