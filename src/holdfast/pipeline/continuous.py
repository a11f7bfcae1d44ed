"""A continuous query: ordinary PySpark whose results are kept in an index, by key, and can be read at any time.

query = ContinuousQuery("turnover", index="sqlite:///data/turnover.db", key="shop")
orders = query.source("orders", spark.readStream.format("kafka")...load())
query.run(turnover(orders), output_mode="update", trigger="5 seconds")
query.get(shop="shop-1")
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast.errors import Corrupt, Invalid
from holdfast.index import Index, SourceCheckpoint
from holdfast.index.rows import decoded, key_bytes, row_reader
from holdfast.pipeline.definition import Operator
from holdfast.pipeline.pipeline import Pipeline
from holdfast.pipeline.recovery_plan import OnChange
from holdfast.pipeline.reports import EpochReport
from holdfast.pipeline.supervisor import Run
from holdfast.sinks import IndexSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK = "results"
CANNOT_RESUME = {"recovery.nothing-left", "sink.ahead", "sink.set-back", "store.lost"}
log = logging.getLogger("holdfast.spark")
T = TypeVar("T")


class ContinuousQuery:
    """One query, its index, and the place from which it resumes.

    `index` is an address or an opened index; `key` names the columns that identify a row, `delete` a boolean column
    that says which rows remove theirs. Checkpoints and workdir lie beside an index on disk unless they are given.

    `recovery` says what to do when the query cannot resume from where the index stands, because checkpoints are
    gone, or the newest of them is damaged, or the index was set back: "strict" stops and says so, "reset" empties the
    index and starts over, once per run.

    Guarantees: results and the positions of the sources change together, once per epoch. A persistent index resumes
    where it stands, also when Spark's own directory is gone. A volatile one starts over with every run, empty.
    """

    def __init__(
        self,
        name: str,
        *,
        index: str | os.PathLike[str] | Index,
        key: str | Sequence[str],
        delete: str | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        on_change: OnChange = "fail",
        recovery: Literal["strict", "reset"] = "strict",
    ) -> None:
        if recovery not in ("strict", "reset"):
            raise Invalid(f"recovery is 'strict' or 'reset', not {recovery!r}.", code="query.recovery")
        self._recovery = recovery
        self._sink = IndexSink(index, key, delete=delete)
        if not self._sink.is_persistent:
            checkpoints, workdir = tempfile.mkdtemp(prefix="holdfast-volatile-"), None
            weakref.finalize(self, shutil.rmtree, checkpoints, ignore_errors=True)
        place = checkpoints if checkpoints is not None else self._sink.beside("checkpoints")
        if place is None:
            raise Invalid(
                f"There is no place for checkpoints beside {self._sink.address}.",
                code="query.checkpoints",
                about=self._sink.address,
                unchanged="everything",
                next_step='pass checkpoints="file:///a/path" or "s3://bucket/path"',
            )
        self.pipeline = Pipeline(name, checkpoints=place, workdir=workdir, on_change=on_change)
        self.pipeline.sink(SINK, self._sink)
        self.pipeline.accepts_loss = recovery == "strict"
        self._has_run = False

    def __repr__(self) -> str:
        pipeline = self.pipeline
        return f"ContinuousQuery({pipeline.name!r}, {self._sink.address!r}, key={self._sink.key!r}, {pipeline.state})"

    def source(self, name: str, frame: DataFrame) -> DataFrame:
        """Name a stream; returns it unchanged. Its position is kept in the index under this name."""
        return self.pipeline.source(name, frame)

    def table(
        self, name: str, reader: Callable[[str], DataFrame], *, version: str | int | Callable[[], str | int]
    ) -> DataFrame:
        """A reference table, as for a pipeline."""
        return self.pipeline.table(name, reader, version=version)

    def operator(self, name: str, operator: Operator) -> Operator:
        """An object on the driver that takes part in every checkpoint, as for a pipeline."""
        return self.pipeline.operator(name, operator)

    def on_epoch(self, function: Callable[[EpochReport], object]) -> Callable[[EpochReport], object]:
        """Call `function` with an `EpochReport` after each epoch, as for a pipeline."""
        return self.pipeline.on_epoch(function)

    def run(
        self,
        frame: DataFrame,
        *,
        output_mode: str = "update",
        trigger: str | Mapping[str, Any] | None = None,
        **spark_trigger: Any,
    ) -> None:
        """Run until the query ends by itself or is asked to stop."""
        self._start_over_if_volatile()
        self._recovering(lambda: self.pipeline.run(frame, output_mode=output_mode, trigger=trigger, **spark_trigger))

    def start(
        self,
        frame: DataFrame,
        *,
        output_mode: str = "update",
        trigger: str | Mapping[str, Any] | None = None,
        **spark_trigger: Any,
    ) -> Run:
        """Start it and return a handle with `stop()` and `await_termination()`."""
        self._start_over_if_volatile()
        return self._recovering(
            lambda: self.pipeline.start(frame, output_mode=output_mode, trigger=trigger, **spark_trigger)
        )

    def get(self, **key: Any) -> dict[str, Any] | None:
        """The row with this key, as the index has it now. None if there is none.

        Values are those of its JSON document, times and dates are texts; numbers have the type of their column, a
        decimal is a `Decimal`. `results` gives columns with their own types.
        """
        with self._sink.read() as index:
            value = index.results.get(key_bytes(self._sink.key, key))
            return None if value is None else row_reader(index.results.read_columns())(value)

    def scan(self, **key: Any) -> Iterator[dict[str, Any]]:
        """Every row, or those with these first columns of the key, in the order of their keys."""
        prefix = key_bytes([*self._sink.key, ""], key) if key else b""
        with self._sink.read() as index:
            row = row_reader(index.results.read_columns())
            for _, value in index.results.scan(prefix):
                yield row(value)

    def positions(self) -> dict[str, SourceCheckpoint]:
        """Where each source stands, as the index has it."""
        with self._sink.read() as index:
            return index.checkpoints.read_all_checkpoints()

    def results(self, like: DataFrame) -> DataFrame:
        """The index as a DataFrame, with the columns of the query `like`, read when it is evaluated."""
        from pyspark.sql.types import StructType

        stored = StructType([field for field in like.schema.fields if field.name != self._sink.delete])
        return decoded(self._documents(like.sparkSession), stored)

    def _recovering(self, go: Callable[[], T]) -> T:
        """Call `go`. If the query cannot resume and may start over, empty everything and call it once more."""
        try:
            return go()
        except Corrupt as error:
            is_alone = [*self.pipeline.sinks] == [SINK]  # another sink would get everything a second time
            if self._recovery != "reset" or error.code not in CANNOT_RESUME or not is_alone:
                raise
            log.warning("%s starts over with an empty index: %s", self.pipeline.name, error.message)
        self.pipeline.start_over()
        with self._sink.opened() as index:
            index.reset()
        return go()

    def _documents(self, spark: SparkSession) -> DataFrame:
        if self._sink.is_persistent:
            from holdfast.index.spark_source import read_index

            return read_index(spark, self._sink.readable_url())
        with self._sink.read() as index:
            rows = [(bytearray(key), bytearray(value)) for key, value in index.results.scan(b"")]
        return spark.createDataFrame(rows, "key binary, value binary")

    def _start_over_if_volatile(self) -> None:
        if self._sink.is_persistent:
            return
        if self._has_run:
            raise Invalid(
                "A query with a volatile index has run already, and a second run would start over.",
                code="query.volatile",
                about=self._sink.address,
                unchanged="the index",
                next_step="make a new ContinuousQuery, or use an index that keeps its results",
            )
        self._has_run = True
