"""The contract of a `ProjectionStore` on any key-value store, as pytest classes to inherit.

    class TestMyStore(ProjectionConformance):
        abilities = ProjectionAbilities(persistent=True, second_opening="shares", sql=False)

        @pytest.fixture(autouse=True)
        def place(self, tmp_path): self.path = tmp_path / "store"

        def open_kv(self): return MyStore(self.path, keys.SCHEMA)

The tests use a `ProjectionStore`, and count reads and writes at the key-value store below it. They kill no process: for
that, run catch-ups under `holdfast.testing.faults.crash`.
"""

from __future__ import annotations

from holdfast.testing.conformance.projections.admin import AdminConformance
from holdfast.testing.conformance.projections.cursors import CursorConformance
from holdfast.testing.conformance.projections.events import EventConformance
from holdfast.testing.conformance.projections.handler_errors import HandlerErrorConformance
from holdfast.testing.conformance.projections.rebuild import RebuildConformance
from holdfast.testing.conformance.projections.retries import RetryConformance
from holdfast.testing.conformance.projections.runner import RunningConformance
from holdfast.testing.conformance.projections.subject import ProjectionAbilities, ProjectionsUnderTest
from holdfast.testing.conformance.projections.views import ViewConformance
from holdfast.testing.conformance.projections.worker import WorkerConformance

__all__ = ["ProjectionAbilities", "ProjectionConformance", "ProjectionsUnderTest"]


class ProjectionConformance(
    EventConformance,
    CursorConformance,
    RunningConformance,
    HandlerErrorConformance,
    RetryConformance,
    ViewConformance,
    AdminConformance,
    RebuildConformance,
    WorkerConformance,
):
    """Every store, on every backend."""
