"""Who took a pipeline over from whom, in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import open_store
from holdfast.checkpoints.heartbeat import DEAD_AFTER, Heartbeat
from holdfast.checkpoints.lease import Lease, LeaseRecord
from holdfast.pipeline.takeover import takeover


def claimed(before: LeaseRecord | None) -> Lease:
    record = LeaseRecord(4, "host-9:77", 100_000, "host-9", 77, 100_000, "0.1.0")
    return Lease(open_store("memory://").objects, record, before)


BEFORE = LeaseRecord(3, "host-7:2746", 50_000, "host-7", 2746, 40_000, "0.1.0")
SIGN = Heartbeat(3, "host-7:2746", 40_000, "running", 0)
FROM = "took over from host-7:2746, running since 1970-01-01T00:00:40Z (generation 3)"


def test_a_first_driver_takes_over_from_nobody() -> None:
    assert takeover(claimed(None), None) is None


def test_from_one_that_is_alive() -> None:
    assert takeover(claimed(BEFORE), (SIGN, 95.0)) == (f"{FROM}, which was alive: it is fenced now, and stops", True)


def test_from_one_that_is_dead() -> None:
    dead_for = DEAD_AFTER + 5
    expected = f"{FROM}, which gave its last sign of life {dead_for:.0f} s before"
    assert takeover(claimed(BEFORE), (SIGN, 100.0 - dead_for)) == (expected, False)


def test_from_one_that_gave_no_sign() -> None:
    assert takeover(claimed(BEFORE), None) == (FROM, False)
    older = msgspec.structs.replace(SIGN, generation=2)
    assert takeover(claimed(BEFORE), (older, 95.0)) == (FROM, False)


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_one_that_has_ended_is_not_taken_over(state: Any) -> None:
    assert takeover(claimed(BEFORE), (msgspec.structs.replace(SIGN, state=state), 95.0)) is None


def test_a_restart_does_not_take_over_from_itself() -> None:
    lease = claimed(msgspec.structs.replace(claimed(None).record, generation=3, claimed_ms=100_001))
    assert takeover(lease, None) is None
