"""What saves do besides saving, retention and sweeps: what it costs, and that it never fails a save."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import CheckpointStore, open_store
from holdfast.checkpoints.cleanup import SWEEP_EVERY
from holdfast.errors import Unavailable
from holdfast.testing.conformance.checkpoints.subject import CREATED_MS, manifest


def test_a_sweep_that_fails_does_not_fail_the_save(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store("memory://")
    objects: Any = store.objects
    listing = objects.list

    def failing(prefix: str) -> Any:
        if prefix == "checkpoints/":
            raise Unavailable("503")
        return listing(prefix)

    objects.list = failing
    for number in range(SWEEP_EVERY - 5, SWEEP_EVERY + 1):
        store.save(manifest(number))
    assert store.list_ids() == [SWEEP_EVERY - 2, SWEEP_EVERY - 1, SWEEP_EVERY]
    assert "503" in caplog.text


def counted(store: CheckpointStore) -> list[str]:
    """Grows with every request that reads."""
    objects: Any = store.objects
    calls: list[str] = []
    for name in ("list", "read", "info"):
        call = getattr(objects, name)

        def counting(*args: Any, name: str = name, call: Any = call, **named: Any) -> Any:
            calls.append(name)
            return call(*args, **named)

        setattr(objects, name, counting)
    return calls


def test_sweeps_cost_less_than_a_request_per_save() -> None:
    store = open_store("memory://")
    store.save(manifest(1))
    calls = counted(store)
    for number in range(2, 3 * SWEEP_EVERY):
        store.save(manifest(number))
    assert calls.count("list") == 4, "two folders, twice"
    assert len(calls) < SWEEP_EVERY


def test_sweeps_cost_two_requests_per_save_at_most_where_every_checkpoint_stays() -> None:
    store = open_store("memory://", max_retained=None)
    store.save(manifest(1))
    calls = counted(store)
    for number in range(2, 10 * SWEEP_EVERY):
        store.save(manifest(number))
    assert calls.count("list") == 8, "two folders, at 100, 200, 400 and 800"
    assert calls.count("read") == 1500
    assert len(store.list_ids()) == 10 * SWEEP_EVERY - 1


def test_keeping_by_age_costs_no_more_with_many_checkpoints() -> None:
    now = [CREATED_MS / 1000]
    store = open_store("memory://", keep="7d", clock=lambda: now[0])

    def save(number: int) -> None:
        now[0] += 1
        store.save(manifest(number, timestamp_ms=int(now[0] * 1000)))

    for number in range(1, 1001):
        save(number)
    kept = len(store.list_ids())
    assert 300 < kept < 400, "of the last five minutes all, before that one a minute"
    calls = counted(store)
    for number in range(1001, 2001):
        save(number)
    assert len(store.list_ids()) < kept + 50
    assert calls.count("list") <= 10, "once in a hundred saves"
    assert len(calls) < 1700, "less than two a save, for sweeps"
