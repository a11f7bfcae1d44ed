"""Projections: events into read models, each event once, read model and cursors in one commit.

`store` what a caller holds · `log` events · `cursors`, `checkpoint` how far a projection has come · `runner`, `batch`
how it goes on · `view`, `readmodel` what it makes · `rebuilding`, `life` made anew, moved back, emptied · `worker`,
`leases` who does it · `backend` what a medium has to do, and one file per medium.
"""

from holdfast.projections.backend import Backend
from holdfast.projections.cursors import GlobalProjectionCheckpoint
from holdfast.projections.event import Event, NewEvent
from holdfast.projections.event_log import Append
from holdfast.projections.opening import open_projections
from holdfast.projections.projection import OnError, Projection
from holdfast.projections.runner import CaughtUp, ProjectionRunner
from holdfast.projections.state import DeadLetter
from holdfast.projections.status import Lag, ProjectionStatus
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import MemoryView, ReadModel, View
from holdfast.projections.worker import Health, ProjectionHealth, ProjectionWorker

__all__ = [
    "Append",
    "Backend",
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
