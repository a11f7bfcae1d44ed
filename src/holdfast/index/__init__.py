"""Indexes: a query's results and the checkpoints of its sources, committed together in sessions.

`index` the object that a caller opens · `session` changes that are committed together · `source_checkpoints` how far
each source was read · `records` keys and records · `configuration` a changed configuration, the reset · `apply` one
change at a time, and recovery of a source that cannot resume · `source` a source that a program reads itself ·
`rows`, `spark_source` an index and Spark.
"""

from holdfast.index.apply import Applier, PositionUnavailable, Recovery, decide_recovery, recover
from holdfast.index.configuration import Start, config_hash, decide_start
from holdfast.index.index import Index, ResultIndex, open_index
from holdfast.index.records import Gap, SourceCheckpoint, StoredCheckpoint
from holdfast.index.source import Change, Resume, Source
from holdfast.index.source_checkpoints import SourceCheckpoints

__all__ = [
    "Applier",
    "Change",
    "Gap",
    "Index",
    "PositionUnavailable",
    "Recovery",
    "ResultIndex",
    "Resume",
    "Source",
    "SourceCheckpoint",
    "SourceCheckpoints",
    "Start",
    "StoredCheckpoint",
    "config_hash",
    "decide_recovery",
    "decide_start",
    "open_index",
    "recover",
]


def __dir__() -> list[str]:
    """The public names alone: what a shell offers for completion."""
    return __all__
