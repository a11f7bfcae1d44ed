"""Computing an epoch's frame once, however many sinks read it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FrameCache:
    """How the frames of one pipeline are held while its sinks read them.

    One sink that takes the frame as it is computes it by writing it. Otherwise the frame is persisted. Where a lost
    executor could make Spark compute a part again, and that might give other rows, it is written to disk first: all
    sinks of an epoch get the same rows, whatever happens between them.
    """

    def __init__(self, *, is_read_once: bool, may_differ: bool, spool: Path) -> None:
        self._is_read_once = is_read_once
        self._may_differ = may_differ
        self._spool = spool

    @contextlib.contextmanager
    def held(self, frame: DataFrame) -> Iterator[DataFrame]:
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
        shutil.rmtree(self._spool, ignore_errors=True)
        place = f"file://{self._spool}"  # as it is: Hadoop would take an escaped space for its name
        frame.write.parquet(place)
        try:
            yield frame.sparkSession.read.schema(frame.schema).parquet(place)
        finally:
            shutil.rmtree(self._spool, ignore_errors=True)

    def evaluate(self, frame: DataFrame) -> None:
        """Compute every partition and keep nothing."""
        frame.write.format("noop").mode("append").save()
