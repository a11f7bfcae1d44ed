"""Sessions: what a query has computed and how far its sources were read, committed in one step.

`index` what a caller holds · `sessions` what belongs together · `checkpoints`, `results` what is kept · `records` how ·
`starting`, `resetting` a changed configuration · `recovering` a source that cannot resume · `applying` one change at a
time · `backend` what a medium has to do, and one file per medium.
"""

from holdfast.index.apply import Applier
from holdfast.index.checkpoint import SourceCheckpoint, StoredCheckpoint
from holdfast.index.configuration import config_hash
from holdfast.index.gap import Gap
from holdfast.index.index import Index, open_index
from holdfast.index.recovering import PositionUnavailable, Recovery, decide_recovery, recover
from holdfast.index.results import ResultIndex
from holdfast.index.source_checkpoints import SourceCheckpoints
from holdfast.index.starting import Start, decide_start

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
