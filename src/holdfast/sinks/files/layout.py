"""How a file sink's epochs are laid out, the same on every kind of storage. Pure."""

from __future__ import annotations

import re

import msgspec

from holdfast.sinks.owner_file import DirectoryOwner
from holdfast.sinks.sink import Delivery

EPOCH_FILE = "_epoch"
HIDDEN = ("_", ".")
"""Names that begin like this are no data: Spark, pyarrow and others skip them."""


class FileLayout(msgspec.Struct, frozen=True):
    """The format of the files, and the names of the directories that hold them."""

    format: str
    epoch_column: str
    options: dict[str, str]
    keep_ms: int | None = None
    """How long an epoch stays in the log of committed files, where there is one; None if for ever."""

    def owner(self, delivery: Delivery) -> DirectoryOwner:
        return DirectoryOwner(delivery.pipeline, delivery.sink, self.format, self.epoch_column)

    def directory(self, delivery: Delivery) -> str:
        """`epoch=000017`, after a reset `epoch=<lineage>-000017`."""
        lineage = f"{delivery.lineage}-" if delivery.lineage else ""
        return f"{self.epoch_column}={lineage}{delivery.epoch:06}"

    def epoch_in(self, directory: str) -> tuple[int, int] | None:
        """The lineage and the epoch that a directory's name says; None if it is no epoch's."""
        found = re.fullmatch(rf"{re.escape(self.epoch_column)}=(?:(\d+)-)?(\d{{6,}})", directory, re.ASCII)
        return None if found is None else (int(found[1] or 0), int(found[2]))


class CommittedFile(msgspec.Struct, frozen=True):
    """One file of a committed epoch."""

    address: str
    size: int
    lineage: int
    epoch: int
