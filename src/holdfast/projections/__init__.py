"""Projections: events into read models, each event once, read model and cursors in one commit.

`store` what a caller holds · `event`, `event_log` events · `cursors` how far a projection has come · `runner`, `batch`
how it goes on · `view` what it makes · `rebuild`, `admin` made again, moved back, emptied · `state` one record per
projection, compared by every commit · `worker`, `worker_lease` who does it · `keys` what is stored where, on the
key-value stores of `holdfast.storage.kv`.
"""

from holdfast.projections.cursors import GlobalProjectionCheckpoint
from holdfast.projections.event import Event, NewEvent
from holdfast.projections.event_log import Append
from holdfast.projections.projection import OnError, Projection
from holdfast.projections.runner import CaughtUp, ProjectionRunner
from holdfast.projections.state import DeadLetter
from holdfast.projections.status import Lag, ProjectionStatus
from holdfast.projections.store import ProjectionStore, open_projections
from holdfast.projections.view import MemoryView, ReadModel, View
from holdfast.projections.worker import Health, ProjectionHealth, ProjectionWorker

__all__ = [
    "Append",
    "CaughtUp",
    "DeadLetter",
    "Event",
    "GlobalProjectionCheckpoint",
    "Health",
    "Lag",
    "MemoryView",
    "NewEvent",
    "OnError",
    "Projection",
    "ProjectionHealth",
    "ProjectionRunner",
    "ProjectionStatus",
    "ProjectionStore",
    "ProjectionWorker",
    "ReadModel",
    "View",
    "open_projections",
]
