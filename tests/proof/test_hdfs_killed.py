"""NameNode and DataNodes die of SIGKILL in the middle of a save, and come back: nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from proof_checks import check
from proof_works import Address, manifest, sidecar

from holdfast.errors import Fenced, HoldfastError, OutcomeUnknown, Unavailable
from servers.hdfs import HdfsServer


@pytest.mark.slow
@pytest.mark.crash
def test_killed_in_the_middle_of_a_save_and_started_again(hdfs: HdfsServer) -> None:
    place = Address(hdfs.new_folder(), "object", {"dfs.client.failover.max.attempts": "1"})
    told: list[str] = []
    failed: list[HoldfastError] = []
    saved = threading.Event()
    stop = threading.Event()

    def save() -> None:
        store, number = place.open(), 1
        while not stop.is_set():
            try:
                if number not in store.list_ids():
                    store.save_with_state(manifest(number, "sidecar", "before"), sidecar(number, "before"))
                told.append(f"saved {number}")
                number += 1
                saved.set()
            except (Unavailable, OutcomeUnknown, Fenced) as error:
                failed.append(error)
                time.sleep(0.2)

    driver = threading.Thread(target=save)
    driver.start()
    try:
        assert saved.wait(30)
        time.sleep(0.3)
        hdfs.kill()
        time.sleep(1.5)
        acknowledged = len(told)
        hdfs.start()
        deadline = time.monotonic() + 60
        while len(told) < acknowledged + 3 and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        stop.set()
        driver.join(60)
    assert len(told) >= acknowledged + 3, failed[-3:]
    assert failed
    assert {error.code for error in failed} <= {
        "hdfs.unreachable",
        "hdfs.unavailable",
        "hdfs.safe-mode",
        "hdfs.no-answer",
        "hdfs.full",
        "object.outcome-unknown",
    }, [str(error) for error in failed]
    with contextlib.suppress(HoldfastError):
        place.open().cleanup_orphans(older_than=0)
    check(place, told, None)
