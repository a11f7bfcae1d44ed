"""The conformance suite, on every key-value store."""

from __future__ import annotations

import pytest
from projection_places import PLACES

from holdfast.projections.keys import SCHEMA
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.store import KeyValueStore
from holdfast.testing.conformance.projections.cursors import CursorConformance
from holdfast.testing.conformance.projections.suite import ProjectionConformance, ProjectionsUnderTest


class _Placed(ProjectionsUnderTest):
    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest, kind: str) -> None:
        self.abilities = PLACES[kind].abilities
        self.url = PLACES[kind].fresh(request)

    def open_kv(self) -> KeyValueStore:
        return open_kv(self.url, SCHEMA, "shared")


@pytest.mark.parametrize(
    "kind",
    ["memory", "sqlite", "postgres", "rocksdb", "redis", "slatedb", pytest.param("slatedb-s3", marks=pytest.mark.soak)],
)
class TestProjections(_Placed, ProjectionConformance):
    """On S3 it takes a minute."""


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["slatedb-s3"])
class TestCursorsOnS3(_Placed, CursorConformance):
    """Durability and fencing over HTTP."""


def test_no_suite_hides_a_test_of_another() -> None:
    suites = [suite for suite in ProjectionConformance.__mro__ if suite.__name__.endswith("Conformance")]
    names = [name for suite in suites for name in vars(suite) if name.startswith("test")]
    assert len(names) == len(set(names)) > 70
