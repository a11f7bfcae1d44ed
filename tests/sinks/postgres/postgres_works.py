"""Work for the crash harness to kill: commits, rollbacks and recoveries of what was staged before. No Spark."""

from __future__ import annotations

from typing import Any

from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import Delivery
from holdfast.testing.faults.crash import Acknowledge


def commit(acknowledge: Acknowledge, dsn: str, descriptor: dict[str, Any], epoch: int) -> None:
    PostgresSink(dsn, "out", "id").commit(descriptor, Delivery("orders", "out", 0, epoch, 2))
    acknowledge("committed")


def rollback(acknowledge: Acknowledge, dsn: str, descriptor: dict[str, Any], epoch: int) -> None:
    PostgresSink(dsn, "out", "id").rollback(descriptor, Delivery("orders", "out", 0, epoch, 2))
    acknowledge("rolled back")


def recover(acknowledge: Acknowledge, dsn: str, descriptor: dict[str, Any], epoch: int) -> None:
    standing = PostgresSink(dsn, "out", "id").recover(Delivery("orders", "out", 0, epoch, 2), descriptor)
    acknowledge(str(standing.committed))


WORKS = {"commit": commit, "rollback": rollback, "recover": recover}


def run(acknowledge: Acknowledge, work: str, **arguments: Any) -> None:
    WORKS[work](acknowledge, **arguments)
