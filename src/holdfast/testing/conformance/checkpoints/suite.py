"""The contracts of checkpoint stores and object stores, as pytest classes to inherit.

    pytest.register_assert_rewrite("holdfast.testing")      # in conftest.py, for readable failures

    class TestMyStore(CheckpointStoreConformance):
        layout = ObjectLayout()
        abilities = Abilities(leftovers=False)

        @pytest.fixture(autouse=True)
        def place(self, tmp_path): self.url = ...

        def open(self, **options): return open_store(self.url, **options)
        def open_beside(self, **options): return open_store(self.other_url, **options)
        def open_objects(self): return open_objects(self.url)

No test is skipped if an ability is missing: the suite then checks that it really is missing.
"""

from __future__ import annotations

from holdfast.testing.conformance.checkpoints.cleanup import CleaningConformance
from holdfast.testing.conformance.checkpoints.read import ReadingConformance
from holdfast.testing.conformance.checkpoints.save import SavingConformance
from holdfast.testing.conformance.checkpoints.subject import Abilities, StoreUnderTest
from holdfast.testing.conformance.checkpoints.update import UpdatingConformance
from holdfast.testing.conformance.checkpoints.validate import RecoveryConformance
from holdfast.testing.conformance.checkpoints.writers import WritersConformance
from holdfast.testing.conformance.objects import MediumUnderTest, ObjectsConformance

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
    """Every store, in every object store and layout."""
