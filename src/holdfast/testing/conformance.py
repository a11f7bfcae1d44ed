"""The conformance suites: what every checkpoint store and every medium must do, as pytest classes to inherit.

    pytest.register_assert_rewrite("holdfast.testing")      # in conftest.py, for readable failures

    class TestMyStore(CheckpointStoreConformance):
        layout = ObjectLayout()
        abilities = Abilities(leftovers=False)

        @pytest.fixture(autouse=True)
        def place(self, tmp_path): self.url = ...

        def open(self, **options): return open_store(self.url, **options)
        def open_beside(self, **options): return open_store(self.other_url, **options)
        def open_objects(self): return open_objects(self.url)

No test is skipped for want of an ability: the suite then asks for the opposite.
"""

from __future__ import annotations

from holdfast.testing.conformance_cleaning import CleaningConformance
from holdfast.testing.conformance_objects import MediumUnderTest, ObjectsConformance
from holdfast.testing.conformance_reading import ReadingConformance
from holdfast.testing.conformance_recovery import RecoveryConformance
from holdfast.testing.conformance_saving import SavingConformance
from holdfast.testing.conformance_subject import Abilities, StoreUnderTest
from holdfast.testing.conformance_updating import UpdatingConformance
from holdfast.testing.conformance_writers import WritersConformance

__all__ = [
    "Abilities",
    "CheckpointStoreConformance",
    "MediumUnderTest",
    "ObjectsConformance",
    "StoreUnderTest",
]


class CheckpointStoreConformance(
    SavingConformance,
    ReadingConformance,
    UpdatingConformance,
    WritersConformance,
    RecoveryConformance,
    CleaningConformance,
):
    """Every store, whatever its medium and layout."""
