"""The conformance suite, on every backend."""

from __future__ import annotations

import pytest
from index_places import PLACES

from holdfast.index.opening import open_backend
from holdfast.storage.kv.backend import Backend
from holdfast.testing.conformance.index.suite import IndexConformance


@pytest.mark.parametrize("name", PLACES)
class TestIndex(IndexConformance):
    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest, name: str) -> None:
        self.abilities = PLACES[name].abilities
        self.url = PLACES[name].fresh(request)

    def open_backend(self) -> Backend:
        return open_backend(self.url)
