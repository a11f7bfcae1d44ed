"""The heartbeat thread of a driver, without Spark."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointStore, open_store
from holdfast.checkpoints.heartbeat import KEY, Heartbeat, beat, read_heartbeat
from holdfast.errors import Unavailable
from holdfast.pipeline.heartbeat import HeartbeatThread
from holdfast.storage.objects.store import Listing

PATIENCE = 30.0


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def last(store: CheckpointStore) -> Heartbeat:
    found = read_heartbeat(store.objects)
    assert found is not None
    return found[0]


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return open_store(tmp_path / "store" if request.param == "disk" else f"memory://{tmp_path.name}")


def is_alive(thread: HeartbeatThread) -> bool:
    return thread._thread.is_alive()


def test_it_beats_while_nothing_else_happens_and_says_that_it_stopped(store: CheckpointStore) -> None:
    lease = store.claim()
    times = iter(range(10**6))
    thread = HeartbeatThread(store.objects, lease, every=0.01, clock=lambda: next(times))
    thread.start()
    wait_until(lambda: read_heartbeat(store.objects) and last(store).at_ms > 3000)
    assert (last(store).state, last(store).generation, last(store).owner) == ("running", 1, lease.record.owner)
    thread.stop(("stopped", None))
    assert last(store).state == "stopped"
    assert not is_alive(thread)
    thread.stop(("failed", "too-late"))
    assert last(store).state == "stopped"


def test_a_failure_has_its_reason(store: CheckpointStore) -> None:
    thread = HeartbeatThread(store.objects, store.claim(), every=3600)
    thread.start()
    thread.stop(("failed", "sink.ahead"))
    assert (last(store).state, last(store).reason) == ("failed", "sink.ahead")


def test_a_query_that_ends_by_itself_is_noticed(store: CheckpointStore) -> None:
    """Also if nobody awaits it."""
    thread = HeartbeatThread(store.objects, store.claim(), every=0.01)
    has_ended = threading.Event()
    thread.follow(lambda: ("stopped", None) if has_ended.is_set() else ("running", None))
    thread.start()
    wait_until(lambda: read_heartbeat(store.objects))
    has_ended.set()
    wait_until(lambda: not is_alive(thread))
    assert last(store).state == "stopped"


def test_a_query_that_cannot_be_asked_any_more_has_failed(store: CheckpointStore) -> None:
    def gone() -> Any:
        raise ConnectionError("the JVM is gone")

    thread = HeartbeatThread(store.objects, store.claim(), every=0.01)
    thread.follow(gone)
    thread.start()
    wait_until(lambda: read_heartbeat(store.objects))
    assert last(store).state == "running"
    thread.stop()
    assert last(store).state == "failed"


def test_one_that_was_taken_over_finds_out_and_ends(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> None:
    thread = HeartbeatThread(store.objects, store.claim("old"), every=0.01)
    thread.start()
    wait_until(lambda: read_heartbeat(store.objects))
    other = HeartbeatThread(store.objects, store.claim("new"), every=3600)
    other.start()
    wait_until(lambda: thread.fenced)
    wait_until(lambda: not is_alive(thread))
    assert thread.fenced is not None
    assert "taken over by new" in thread.fenced.message
    assert "taken over by new" in caplog.text
    thread.stop(("failed", "lease.lost"))
    assert (last(store).generation, last(store).state) == (2, "running")
    other.stop(("stopped", None))


def test_it_looks_through_a_handle_of_its_own(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle belongs to one thread, and the one of the store to the driver's."""
    thread = HeartbeatThread(store.objects, store.claim("old"), every=0.01)
    open_store(store.objects.address).claim("new")
    real, users = store.objects.list, set()

    def listed(prefix: str) -> Listing:
        users.add(threading.current_thread().name)
        return real(prefix)

    monkeypatch.setattr(store.objects, "list", listed)
    beat(store.objects, Heartbeat(2, "new", 0, "running", 0))
    thread.start()
    wait_until(lambda: thread.fenced)
    thread.stop()
    assert users == set()


def test_a_store_that_fails_does_not_end_it(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(store.objects)
    real, failures = kind.update, 0

    def update(self: Any, key: str, *args: Any, **kwargs: Any) -> bool:
        nonlocal failures
        if key == KEY and failures < 3:
            failures += 1
            raise Unavailable("the disk is away") if failures < 3 else ZeroDivisionError
        return bool(real(self, key, *args, **kwargs))

    monkeypatch.setattr(kind, "update", update)
    thread = HeartbeatThread(store.objects, store.claim(), every=0.01)
    thread._asked.wait = lambda timeout=None: threading.Event().wait(0.01)  # type: ignore[method-assign]
    thread.start()
    wait_until(lambda: failures == 3)
    thread.stop(("stopped", None))
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1  # not one for each try
    assert "the disk is away" in said[0].getMessage()


def test_a_store_that_hangs_does_not_keep_a_run_from_ending(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(store.objects)
    may_go_on = threading.Event()
    monkeypatch.setattr(kind, "update", lambda *_, **__: may_go_on.wait(PATIENCE))
    monkeypatch.setattr("holdfast.pipeline.heartbeat.STOP_WITHIN", 0.05)
    thread = HeartbeatThread(store.objects, store.claim(), every=0.01)
    thread.start()
    thread.stop(("stopped", None))
    assert is_alive(thread)
    may_go_on.set()
    wait_until(lambda: not is_alive(thread))


def test_it_does_not_meddle_with_the_writes_of_an_epoch(tmp_path: Path) -> None:
    """An epoch's handle defers its syncs; the heartbeat's own handle neither sees that nor adds to it."""
    store = open_store(tmp_path / "store")
    lease = store.claim()
    objects: Any = store.objects
    thread = HeartbeatThread(objects, lease, every=0.001)
    with objects.together():
        thread.start()
        wait_until(lambda: read_heartbeat(objects))
        assert objects._deferred == {}
    thread.stop(("stopped", None))


def test_a_heartbeat_beside_an_older_one_is_one_object(store: CheckpointStore) -> None:
    for generation in (1, 2, 3):
        beat(store.objects, Heartbeat(generation, "host-7:2746", 40_000, "running", 0))
    assert [info.key for info in store.objects.list("lease/")] == [KEY]
