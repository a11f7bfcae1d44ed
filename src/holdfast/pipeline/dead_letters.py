"""Dead letters: rows that a sink refuses go, with the reason, to a sink of their own in the same epoch.

That sink is staged, decided and committed like any other. So of every row the epoch delivers either the row or the
letter, exactly once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.base.jvm import analysed_plan, is_one_process, observed
from holdfast.errors import Invalid
from holdfast.pipeline.definition import NamedSink, OnRefused
from holdfast.pipeline.query.plan_reader import is_deterministic
from holdfast.sinks import FileSink, RefusesRows, RefusesRowsTogether, Sink
from holdfast.sinks.spark_write import column_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

DEAD_LETTERS = "dead-letters"
"""The name of the sink for refused rows, and of its directory beside the checkpoints."""
SCHEMA = "sink string, epoch long, lineage long, reason string, row string, at timestamp"
_REASON = "__holdfast_reason__"
_JSON = {"timeZone": "UTC", "ignoreNullFields": "false"}


class DeadLetterSink(NamedSink):
    """The sink of a pipeline that takes what the other sinks refuse."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(DEAD_LETTERS, sink, _no_letters)


class DeadLetterFiles(FileSink):
    """The dead letters beside the checkpoints: one JSON document per refused row."""

    def __init__(self, checkpoints: str, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__(
            f"{checkpoints.rstrip('/')}/{DEAD_LETTERS}",
            "json",
            epoch_column="holdfast_epoch",
            storage_options=storage_options,
        )

    def describe(self) -> dict[str, Any]:
        """Without the place, which is that of the checkpoints: a pipeline may be moved with all it has."""
        return super().describe() | {"path": DEAD_LETTERS}


def check_on_refused(name: str, sink: Sink, on_refused: OnRefused) -> None:
    """`Invalid` if the sink cannot do what is asked for."""
    if on_refused not in ("stop", "dead-letter"):
        raise Invalid(
            f"on_refused is 'stop' or 'dead-letter', not {on_refused!r}.",
            code="pipeline.on-refused",
            about=f"sink {name!r}",
        )
    if on_refused == "dead-letter" and not isinstance(sink, RefusesRows):
        raise Invalid(
            f"Sink {name!r} is a {type(sink).__name__}, which cannot tell which rows it would refuse, so that no row "
            "could be set apart.",
            code="pipeline.on-refused",
            about=f"sink {name!r}",
            unchanged="everything",
            next_step="leave on_refused='dead-letter' out; DeltaSink, IndexSink, PostgresSink and sinks with a "
            "method refused(frame) take it",
        )


def check_view(named: NamedSink, viewed: DataFrame) -> None:
    """`Invalid` for a view whose rows are split and may be others when an executor is lost between the two parts."""
    if named.on_refused == "stop" or is_one_process(viewed.sparkSession) or is_deterministic(analysed_plan(viewed)):
        return
    raise Invalid(
        f"The view of sink {named.name!r} is not deterministic: on a cluster a row that is computed again could be "
        "accepted and refused, or neither.",
        code="pipeline.on-refused",
        about=f"sink {named.name!r}",
        unchanged="the store and every sink",
        next_step="move what depends on chance from the view into the query, whose rows are kept for all sinks",
    )


class RefusedCount:
    """How many rows of an epoch went to the dead letters, per sink. The job that stages them counts them."""

    def __init__(self, sinks: Iterable[NamedSink]) -> None:
        self._names = [named.name for named in sinks]
        self._observation: Observation | None = None

    def count(self, letters: DataFrame) -> DataFrame:
        """The same letters, counted by the first action on them."""
        from pyspark.sql import Observation, functions

        self._observation = Observation()
        counts = [
            functions.count_if(functions.col("sink") == name).alias(f"sink{number}")
            for number, name in enumerate(self._names)
        ]
        return letters.observe(self._observation, *counts)

    def read(self) -> dict[str, int]:
        """Sinks with refused rows, and how many. Empty if there are none, or if no job has counted them yet.

        A sink that does not read its rows as a DataFrame makes no count.
        """
        found = observed(self._observation) if self._observation is not None else None
        counts = {name: int((found or {}).get(f"sink{number}") or 0) for number, name in enumerate(self._names)}
        return {name: count for name, count in counts.items() if count}


class EpochRows:
    """The rows of one epoch for each sink. Every view is called at most once, and what it gives is split at most once.

    `frame` gives the same rows each time; a view whose rows are split is persisted until `close`, so that accepted and
    refused rows are parts of one result.

    Rows that a sink refuses because of one another are set apart once `split_together` is called. With `is_replay` they
    are from the beginning: letters may be all that is staged again, and nothing else would ask for it. Of rows that are
    not refused together both give the same parts.
    """

    def __init__(
        self,
        frame: DataFrame,
        sinks: Iterable[NamedSink],
        *,
        lineage: int,
        epoch: int,
        now: float,
        is_replay: bool = False,
    ) -> None:
        self._frame = frame
        self._split_sinks = [named for named in sinks if named.on_refused == "dead-letter"]
        self._lineage = lineage
        self._epoch = epoch
        self._now = now
        self._is_replay = is_replay
        self.refused = RefusedCount(self._split_sinks)
        self._splits: dict[str, tuple[DataFrame, Column | None]] = {}
        self._persisted: list[DataFrame] = []

    def of(self, named: NamedSink) -> DataFrame:
        """The rows that this sink is to stage."""
        if isinstance(named, DeadLetterSink):
            letters = [letter for split in self._split_sinks if (letter := self._letters(split)) is not None]
            if not letters:
                return _no_letters(self._frame)
            return self.refused.count(functools.reduce(lambda some, more: some.unionAll(more), letters))
        if named.on_refused == "stop":
            return named.frame(self._frame)
        rows, reason = self._split(named)
        return rows if reason is None else rows.where(reason.isNull()).drop(_REASON)

    def split_together(self, named: NamedSink) -> bool:
        """Set apart what the sink refuses because of other rows, too. False if that is so already or it cannot tell."""
        if named.on_refused == "stop" or not isinstance(named.sink, RefusesRowsTogether):
            return False
        rows, reason = self._split(named)
        if _REASON in rows.columns:
            return False
        self._splits[named.name] = _marked(named.sink, rows, reason)
        return True

    def close(self) -> None:
        for rows in self._persisted:
            rows.unpersist()

    def _split(self, named: NamedSink) -> tuple[DataFrame, Column | None]:
        if named.name not in self._splits:
            rows = named.frame(self._frame)
            if named.view and not rows.storageLevel.useMemory:  # else it is the held frame, or held by the view itself
                self._persisted.append(rows.persist())
            assert isinstance(named.sink, RefusesRows)
            split = rows, named.sink.refused(rows)
            if self._is_replay and isinstance(named.sink, RefusesRowsTogether):
                split = _marked(named.sink, *split)
            self._splits[named.name] = split
        return self._splits[named.name]

    def _letters(self, named: NamedSink) -> DataFrame | None:
        from pyspark.sql import functions

        rows, reason = self._split(named)
        if reason is None:
            return None
        return rows.where(reason.isNotNull()).select(
            functions.lit(named.name).alias("sink"),
            functions.lit(self._epoch).cast("long").alias("epoch"),
            functions.lit(self._lineage).cast("long").alias("lineage"),
            reason.alias("reason"),
            functions.to_json(functions.struct(*_columns(rows)), _JSON).alias("row"),
            functions.timestamp_micros(functions.lit(int(self._now * 1_000_000))).alias("at"),
        )


def _no_letters(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame([], SCHEMA)


def _columns(rows: DataFrame) -> list[Column | str]:
    """The row as the sink gets it."""
    return [column_named(name) for name in rows.columns if name != _REASON] if _REASON in rows.columns else ["*"]


def _marked(sink: RefusesRowsTogether, rows: DataFrame, reason: Column | None) -> tuple[DataFrame, Column | None]:
    """The split by both kinds of reasons. A window function cannot stand in a filter, so the reason is a column."""
    from pyspark.sql import functions

    reasons = [*([] if reason is None else [reason]), sink.refused_together(rows)]
    return rows.withColumn(_REASON, functions.coalesce(*reasons)), functions.col(_REASON)
