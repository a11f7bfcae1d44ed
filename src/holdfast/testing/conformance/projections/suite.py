"""What every key-value store under a `ProjectionStore` must do, as pytest classes to inherit.

    class TestMyStore(ProjectionConformance):
        abilities = ProjectionAbilities(persistent=True, second_opening="shares", sql=False)

        @pytest.fixture(autouse=True)
        def place(self, tmp_path): self.path = tmp_path / "store"

        def open_kv(self): return MyStore(self.path, keys.SCHEMA)

Everything is asked for through a `ProjectionStore`, and what is written is counted at the key-value store. Nothing is
killed here: for that, run catch-ups under `holdfast.testing.faults.crash`.
"""

from __future__ import annotations

from holdfast.testing.conformance.projections.admin import LifeConformance
from holdfast.testing.conformance.projections.cursors import CursorConformance
from holdfast.testing.conformance.projections.events import EventConformance
from holdfast.testing.conformance.projections.runner import RunningConformance
from holdfast.testing.conformance.projections.subject import ProjectionAbilities, ProjectionsUnderTest

__all__ = ["ProjectionAbilities", "ProjectionConformance", "ProjectionsUnderTest"]


class ProjectionConformance(EventConformance, CursorConformance, RunningConformance, LifeConformance):
    """Every store, on every backend."""
