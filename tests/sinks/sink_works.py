"""What the crash tests run in processes that are killed: all that a sink does without Spark."""

from __future__ import annotations

import json
from typing import Any

from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.files import FileSink
from holdfast.sinks.sink import Delivery, Sink
from holdfast.testing.faults.crash import Acknowledge


def sink_of(kind: str, root: str, options: dict[str, str] | None = None) -> Sink:
    """`root` is a path; for files in a bucket an address, a blank, and the options to open it with.

    `options` are for a table on object storage.
    """
    if kind == "files-s3":
        address, _, given = root.partition(" ")
        return FileSink(address, storage_options=json.loads(given))
    if kind == "files":
        return FileSink(root)
    evolve: Any = "add-columns" if kind == "columns" else None
    return DeltaSink(root, key="id" if kind == "merge" else None, evolve=evolve, storage_options=options)


def commit(
    acknowledge: Acknowledge, kind: str, root: str, descriptor: dict[str, Any], generation: int, **more: Any
) -> None:
    sink_of(kind, root, **more).commit(descriptor, _delivery(2, generation))
    acknowledge("committed")


def rollback(
    acknowledge: Acknowledge, kind: str, root: str, descriptor: dict[str, Any], generation: int, **more: Any
) -> None:
    sink_of(kind, root, **more).rollback(descriptor, _delivery(2, generation))
    acknowledge("rolled back")


def recover(
    acknowledge: Acknowledge, kind: str, root: str, descriptor: dict[str, Any] | None, generation: int, **more: Any
) -> None:
    sink_of(kind, root, **more).recover(_delivery(2, generation), descriptor)
    acknowledge("recovered")


def _delivery(epoch: int, generation: int) -> Delivery:
    return Delivery(pipeline="orders", sink="out", lineage=0, epoch=epoch, generation=generation)


def commit_of_a_lineage(acknowledge: Acknowledge, root: str, descriptor: dict[str, Any]) -> None:
    sink_of("files-s3", root).commit(descriptor, Delivery("orders", "out", lineage=1, epoch=2, generation=1))
    acknowledge("committed")
