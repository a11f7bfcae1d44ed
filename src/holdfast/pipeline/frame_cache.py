"""The frame of an epoch while its sinks read it: as it is, persisted by Spark, or spooled to disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.sinks.spark_write import COMMITTER
from holdfast.storage.files.directory import Directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FrameCache:
    """Holds an epoch's frame while its sinks read it, so that Spark computes it at most once.

    A single sink without a view computes the frame by writing it: nothing is held. Otherwise the frame is persisted. If
    Spark could compute a part again after losing an executor, and that might give other rows, the frame is written to
    disk first. So all sinks of an epoch get the same rows in any case.
    """

    def __init__(self, *, is_read_once: bool, may_differ: bool, directory: Directory, name: str) -> None:
        """The frame is written into a folder called `name` of `directory`."""
        self._is_read_once = is_read_once
        self._may_differ = may_differ
        self._directory = directory
        self._name = name

    @contextlib.contextmanager
    def hold(self, frame: DataFrame) -> Iterator[DataFrame]:
        """The frame, computed at most once until the block ends."""
        if self._is_read_once:
            yield frame
        elif self._may_differ:
            yield from self._spooled(frame)
        else:
            persisted = frame.persist()
            try:
                yield persisted
            finally:
                persisted.unpersist()

    def _spooled(self, frame: DataFrame) -> Iterator[DataFrame]:
        self._directory.remove_folders(self._name)
        place = f"{self._directory.address}/{self._name}"
        frame.write.options(**COMMITTER).parquet(place)
        try:
            yield frame.sparkSession.read.schema(frame.schema).parquet(place)
        finally:
            self._directory.remove_folders(self._name)
