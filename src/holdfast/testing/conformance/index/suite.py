"""The contract of an index on any backend, as pytest classes to inherit.

    class TestMyIndex(IndexConformance):
        abilities = IndexAbilities(persistent=True, second_opening="refused")

        @pytest.fixture(autouse=True)
        def place(self, tmp_path): self.path = tmp_path / "index"

        def open_store(self): return MyStore(self.path, SCHEMA)

The tests use an `Index` on the backend, as users do, and damage records through the backend itself. They kill no
process: for that, run sessions and resets under `holdfast.testing.faults.crash`.
"""

from __future__ import annotations

from holdfast.testing.conformance.index.clear import ClearingConformance
from holdfast.testing.conformance.index.failures import SessionFailuresConformance
from holdfast.testing.conformance.index.nesting import NestingConformance
from holdfast.testing.conformance.index.records import KeepingConformance
from holdfast.testing.conformance.index.sessions import SessionConformance
from holdfast.testing.conformance.index.subject import IndexAbilities, IndexUnderTest
from holdfast.testing.conformance.index.threads import SessionThreadsConformance

__all__ = ["IndexAbilities", "IndexConformance", "IndexUnderTest"]


class IndexConformance(
    SessionConformance,
    NestingConformance,
    SessionThreadsConformance,
    SessionFailuresConformance,
    KeepingConformance,
    ClearingConformance,
):
    """Every index, on every backend."""
