"""The conformance suite, on every backend."""

from __future__ import annotations

import pytest

from holdfast.index.records import SCHEMA
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.store import KeyValueStore
from holdfast.testing.conformance.index.suite import IndexConformance
from index_places import PLACES
from products import besides


class OnPlace(IndexConformance):
    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest, name: str) -> None:
        self.abilities = PLACES[name].abilities
        self.url = PLACES[name].fresh(request)

    def open_store(self) -> KeyValueStore:
        return open_kv(self.url, SCHEMA, "exclusive")


@pytest.mark.parametrize("name", [name for name in PLACES if name != "slatedb"])
class TestIndex(OnPlace):
    """Every other backend."""


# It opens the index dozens of times, and SlateDB takes as long for one opening as others for a test.
@besides("test_reset_that_is_cut_short_is_finished_by_the_next_opening")
@pytest.mark.parametrize("name", ["slatedb"])
class TestSlateDB(OnPlace):
    """The backend on object storage."""
