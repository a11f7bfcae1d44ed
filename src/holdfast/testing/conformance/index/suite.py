"""What every backend of an index must do, as pytest classes to inherit.

    class TestMyIndex(IndexConformance):
        abilities = IndexAbilities(persistent=True, second_opening="refused")

        @pytest.fixture(autouse=True)
        def place(self, tmp_path): self.path = tmp_path / "index"

        def open_store(self): return MyStore(self.path, SCHEMA)

Everything is asked for through an `Index` on the backend, since that is what users rely on; values are damaged through
the backend itself. No process is killed here: for that, run sessions and resets under `holdfast.testing.faults.crash`.
"""

from __future__ import annotations

from holdfast.testing.conformance.index.clear import ClearingConformance
from holdfast.testing.conformance.index.records import KeepingConformance
from holdfast.testing.conformance.index.sessions import SessionConformance
from holdfast.testing.conformance.index.subject import IndexAbilities, IndexUnderTest

__all__ = ["IndexAbilities", "IndexConformance", "IndexUnderTest"]


class IndexConformance(SessionConformance, KeepingConformance, ClearingConformance):
    """Every index, on every backend."""
