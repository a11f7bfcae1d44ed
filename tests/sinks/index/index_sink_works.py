"""What the crash tests of the index sink run in processes that are killed. No Spark."""

from __future__ import annotations

from typing import Any

from holdfast.sinks import Delivery, IndexSink
from holdfast.testing.faults.crash import Acknowledge


def commit(acknowledge: Acknowledge, url: str, area: str, descriptor: dict[str, Any], lineage: int, epoch: int) -> None:
    IndexSink(url, "id", staging=area).commit(descriptor, Delivery("orders", "out", lineage, epoch, 1))
    acknowledge("committed")
