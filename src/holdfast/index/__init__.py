"""Sessions: what a query has computed and how far its sources were read, committed in one step.

`index` what a caller holds · `session` which changes belong together · `source_checkpoints` how far sources were read ·
`records` keys and records · `configuration` a changed configuration, the reset · `apply` one change at a time, a source
that cannot resume · `rows`, `spark_source` an index and Spark.
"""

from holdfast.index.apply import Applier, PositionUnavailable, Recovery, decide_recovery, recover
from holdfast.index.configuration import Start, config_hash, decide_start
from holdfast.index.index import Index, ResultIndex, open_index
from holdfast.index.records import Gap, SourceCheckpoint, StoredCheckpoint
from holdfast.index.source_checkpoints import SourceCheckpoints

__all__ = [
    "Applier",
    "Gap",
    "Index",
    "PositionUnavailable",
    "Recovery",
    "ResultIndex",
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
