"""Sessions: what a query has computed and how far its sources were read, committed in one step.

`index` what a caller holds · `sessions` what belongs together · `checkpoints`, `results` what is kept · `records` how ·
`starting`, `resetting` a changed configuration · `recovering` a source that cannot resume · `applying` one change at a
time · `backend` what a medium has to do, and one file per medium.
"""

from holdfast.sources.apply import Applier
from holdfast.sources.backend import Backend
from holdfast.sources.checkpoint import SourceCheckpoint, StoredCheckpoint
from holdfast.sources.configuration import config_hash
from holdfast.sources.gap import Gap
from holdfast.sources.index import Index
from holdfast.sources.opening import open_index
from holdfast.sources.recovering import PositionUnavailable, Recovery, decide_recovery, recover
from holdfast.sources.results import ResultIndex
from holdfast.sources.source_checkpoints import SourceCheckpoints
from holdfast.sources.starting import Start, decide_start

__all__ = [
    "Applier",
    "Backend",
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
