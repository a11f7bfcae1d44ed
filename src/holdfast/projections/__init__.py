"""Projections: build read models from events. Each event counts once; read model and cursors share one commit.

`store` the object that a caller opens · `event`, `event_log` events · `cursors` how far a projection has read each
stream · `runner`, `batch`, `retry` the catch-up · `view` read models · `rebuild`, `admin` rebuild, rewind, reset, dead
letters · `state` one record per projection, compared by every commit · `worker`, `worker_lease` the process that runs
projections · `keys` the layout on the key-value stores of `holdfast.storage.kv`.
"""

from holdfast.projections.cursors import GlobalProjectionCheckpoint
from holdfast.projections.event import Event, NewEvent
from holdfast.projections.event_log import Append
from holdfast.projections.projection import OnError, Projection
from holdfast.projections.runner import CaughtUp, ProjectionRunner
from holdfast.projections.state import DeadLetter, FailedEvent
from holdfast.projections.status import Lag, ProjectionStatus
from holdfast.projections.store import ProjectionStore, open_projections
from holdfast.projections.view import MemoryView, ReadModel, View
from holdfast.projections.worker import Health, ProjectionHealth, ProjectionWorker

__all__ = [
    "Append",
    "CaughtUp",
    "DeadLetter",
    "Event",
    "FailedEvent",
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


def __dir__() -> list[str]:
    """The public names alone: what a shell offers for completion."""
    return __all__
