"""The conformance suite, on every backend."""

from __future__ import annotations

import pytest

from holdfast.index.records import SCHEMA
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.store import KeyValueStore
from holdfast.testing.conformance.index.suite import IndexConformance
from index_places import PLACES


@pytest.mark.parametrize("name", PLACES)
class TestIndex(IndexConformance):
    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest, name: str) -> None:
        self.abilities = PLACES[name].abilities
        self.url = PLACES[name].fresh(request)

    def open_store(self) -> KeyValueStore:
        return open_kv(self.url, SCHEMA, "exclusive")
