"""Looking at sinks from outside, and at what they ask of the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset
import pytest
from deltalake import DeltaTable

from holdfast.sinks import Delivery
from holdfast.testing.conformance.sinks import Row, delivery


def rows_in_files(root: Path, format: str = "parquet") -> list[Row]:
    if not any(root.glob("epoch=*")):
        return []
    read = pyarrow.dataset.dataset(root, format=format, partitioning="hive").to_table()
    return [(row["id"], row["name"]) for row in read.to_pylist()]


def rows_in_table(root: Path) -> list[Row]:
    return [(row["id"], row["name"]) for row in DeltaTable(root).to_pyarrow_table().to_pylist()]


def staged_in(area: Path) -> list[str]:
    return sorted(os.listdir(area)) if area.exists() else []


def everything_below(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*")} | {str(root)}


class DiskRequests:
    """What was synced and renamed, in order: `("sync", path)`, `("rename", new path)`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        self._patch(monkeypatch, "fsync", lambda descriptor: ("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        self._patch(monkeypatch, "rename", lambda _, new: ("rename", os.fspath(new)))

    def _patch(self, monkeypatch: pytest.MonkeyPatch, name: str, noted: Callable[..., tuple[str, str]]) -> None:
        really = getattr(os, name)

        def call(*arguments: Any) -> Any:
            outcome = really(*arguments)
            self.seen.append(noted(*arguments))
            return outcome

        monkeypatch.setattr(os, name, call)

    @property
    def synced(self) -> set[str]:
        return {path for what, path in self.seen if what == "sync"}

    def synced_since(self, renamed: str) -> set[str]:
        """What was synced after something was renamed to this."""
        at = self.seen.index(("rename", renamed))
        return {path for what, path in self.seen[at:] if what == "sync"}


def elsewhere(epoch: int, generation: int = 1) -> Delivery:
    """An epoch of a pipeline of the same name with a store of its own, which has come just as far."""
    return msgspec.structs.replace(delivery(epoch, generation=generation), query="another")


def committing(epoch: int) -> Delivery:
    """As a driver has it that commits, with or without having staged it."""
    return msgspec.structs.replace(delivery(epoch, generation=2), positions={})
