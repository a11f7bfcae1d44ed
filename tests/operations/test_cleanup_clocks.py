"""Orphans are removed by their age, which is the store's: a machine whose clock is wrong removes nothing."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

import holdfast
from checkpoint_stores import fill
from holdfast.errors import Invalid
from holdfast.operations.cleanup import RemovalPlan, plan_gc
from holdfast.status.checkpoints import open_existing

BEING_WRITTEN = "checkpoints/state-000009.bin"
HOUR = 3600.0


class Place:
    def __init__(self, address: str, options: dict[str, str] | None) -> None:
        self.address, self.options = address, options
        fill(address, options=options)
        self.store = holdfast.open_store(address, options=options)
        self.store.objects.create(BEING_WRITTEN, [b"half of an epoch"])

    def plan(self, *, ahead: float, older_than: float) -> RemovalPlan:
        """As a machine makes it whose clock is ahead by so many seconds."""
        store = holdfast.open_store(self.address, options=self.options, clock=lambda: time.time() + ahead)
        opened = open_existing(self.address, options=self.options)
        return plan_gc(msgspec.structs.replace(opened, store=store), older_than)

    def found(self) -> list[str]:
        return [info.key for info in self.store.objects.list("")]


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.s3), "hdfs"])
def place(request: pytest.FixtureRequest) -> Place:
    server: Any = request.getfixturevalue("s3_server" if request.param == "s3" else "hdfs")
    if request.param == "s3":
        return Place(f"s3://{server.new_bucket()}/orders", server.options)
    return Place(server.new_folder(), None)


def test_a_clock_that_is_an_hour_ahead_removes_nothing(place: Place) -> None:
    before = place.found()
    plan = place.plan(ahead=HOUR + 60, older_than=HOUR)
    assert [orphan.key for orphan in plan.shown.orphans] == [BEING_WRITTEN]
    with pytest.raises(Invalid, match=r"clock is 1 h .*ahead of that of") as caught:
        plan.apply()
    assert caught.value.code == "cleanup.clock"
    assert caught.value.next_step
    assert place.found() == before


def test_one_that_is_an_hour_behind_waits_longer(place: Place) -> None:
    assert place.plan(ahead=-HOUR, older_than=60).is_empty


def test_clocks_that_agree_and_orphans_of_any_age(place: Place) -> None:
    """With an age of 0 a person says that nobody writes there: no clock matters."""
    assert place.plan(ahead=HOUR, older_than=0).apply().result["orphans"]
    assert BEING_WRITTEN not in place.found()
